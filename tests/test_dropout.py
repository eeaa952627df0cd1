# SPDX-License-Identifier: Apache-2.0
"""Dropout of `attention`: what it computes, and which random numbers it takes from torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import (
    FlashAttentionError,
    UnsupportedError,
    attention,
    backward,
    dropout_mask,
    forward,
)
from flash_attention.compat.flash_attn_passes import flash_attn_forward
from flash_attention.compat.sdpa import route_sdpa
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import cu_seqlens

P = 0.25  # of which 1 - P is a multiple of 1/256
STATE = torch.tensor([7, 1 << 40])
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors(device: str = "cpu", dtype: torch.dtype | None = None) -> list[Tensor]:
    """q, k and v that require grad: double on the CPU, of 16 bits on a GPU."""
    random = torch.Generator().manual_seed(2)
    dtype = dtype or (torch.float64 if device == "cpu" else torch.bfloat16)
    sizes = ((2, 37, 4, 64), (2, 53, 2, 64), (2, 53, 2, 64))
    made = (torch.randn(size, generator=random, dtype=torch.float64) for size in sizes)
    return [t.to(device, dtype).requires_grad_() for t in made]


def by_definition(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, seen: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, some weights of which are dropped, and the others larger."""
    k, v = (t.repeat_interleave(q.shape[-2] // t.shape[-2], -2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1) * mask / (1 - P), v)


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_are_those_of_the_definition(causal: bool) -> None:
    q, k, v = tensors()
    mask = dropout_mask(STATE, P, (2, 4, 37, 53))
    seen = torch.ones(37, 53, dtype=torch.bool).tril(53 - 37) if causal else None
    wanted = by_definition(q, k, v, mask, seen)
    out, lse = attention(q, k, v, causal=causal, dropout_p=P, rng_state=STATE, return_lse=True)
    torch.testing.assert_close(out, wanted)
    assert torch.equal(lse, attention(q, k, v, causal=causal, return_lse=True)[1])
    do = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(3))
    for mine, other in zip(
        *(torch.autograd.grad(o, (q, k, v), do) for o in (out, wanted)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_the_places_of_packed_sequences_are_those_in_their_own() -> None:
    q, k, v = (t.detach() for t in tensors())
    lengths_q, lengths_k = (37, 20), (11, 53)
    packed = [
        torch.cat([one[:n] for one, n in zip(t, lengths, strict=True)])
        for t, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    options: dict[str, Any] = {
        "cu_seqlens_q": cu_seqlens(lengths_q),
        "cu_seqlens_k": cu_seqlens(lengths_k),
        "max_seqlen_q": max(lengths_q),
        "max_seqlen_k": max(lengths_k),
    }
    q_all, k_all, v_all = packed
    out = attention(q_all, k_all, v_all, dropout_p=P, rng_state=STATE, **options).split(lengths_q)
    mask = dropout_mask(STATE, P, (2, 4, 37, 53))
    for i, (n, m) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        one = (q[i : i + 1, :n], k[i : i + 1, :m], v[i : i + 1, :m])
        wanted = by_definition(*one, mask[i : i + 1, :, :n, :m], None)[0]
        torch.testing.assert_close(out[i], wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_is_drawn_from_the_generator_of_the_device(device: str) -> None:
    q, k, v = tensors(device)
    torch.manual_seed(4)
    state = torch.randint((1 << 63) - 1, (2,), device=device)
    torch.manual_seed(4)
    first, second = (attention(q, k, v, dropout_p=P) for _ in range(2))
    assert torch.equal(first, attention(q, k, v, dropout_p=P, rng_state=state))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("device", DEVICES)
def test_without_dropout_nothing_is_drawn(device: str) -> None:
    q, k, v = tensors(device)
    get = torch.get_rng_state if device == "cpu" else torch.cuda.get_rng_state
    before = get()
    plain = attention(q, k, v)
    assert torch.equal(plain, attention(q, k, v, dropout_p=0.0))
    attention(q, k, v, dropout_p=P, rng_state=STATE.to(device))
    assert torch.equal(get(), before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_drops_the_same_again(device: str, reentrant: bool) -> None:
    q, k, v = tensors(device)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        once = attention(q, k, v, dropout_p=P)
        return attention(once, k, v, dropout_p=P)

    def gradients(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        torch.manual_seed(6)
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        run(*leaves).square().sum().backward()
        return tuple(t.grad for t in leaves if t.grad is not None)

    def checkpointed(*given: Tensor) -> Tensor:
        out: Tensor = checkpoint(layer, *given, use_reentrant=reentrant)
        return out

    torch.use_deterministic_algorithms(True)
    try:
        wanted, mine = gradients(layer), gradients(checkpointed)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, mine, wanted))


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_function_draws_anew_in_every_call(device: str) -> None:
    q, k, v = tensors(device)
    torch._dynamo.reset()
    backend = "aot_eager" if device == "cpu" else "inductor"

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, dropout_p=P)

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    torch.manual_seed(8)
    first, second = compiled(q, k, v), compiled(q, k, v)
    torch.manual_seed(8)
    assert torch.equal(compiled(q, k, v), first)
    assert not torch.equal(first, second)
    if device == "cpu":  # where the numbers of torch are those without a compiler
        torch.manual_seed(8)
        torch.testing.assert_close(step(q, k, v), first)
    # The output is linear in v, with the weights that dv has to be computed with.
    (dv,) = torch.autograd.grad(first, v, torch.ones_like(first))
    torch.testing.assert_close(
        first.double().sum(),
        (dv.double() * v.double()).sum(),
        rtol=2e-2,
        atol=1e-1 if device == "cuda" else 1e-6,
    )


def test_the_operators_take_the_state() -> None:
    q, k, v = (t.detach().bfloat16() for t in tensors())
    options: dict[str, Any] = {"rng_state": STATE, "dropout_p": P}
    operator = torch.ops.flash_attention.dense.default
    torch.library.opcheck(operator, (q, k, v), options)
    assert torch.equal(operator(q, k, v, **options)[0], attention(q, k, v, **options))


def test_torch_func_differentiates_dropout() -> None:
    q, k, v = tensors()

    def of_q(q: Tensor) -> Tensor:
        return attention(q, k, v, dropout_p=P, rng_state=STATE)

    pull = torch.func.vjp(of_q, q.detach())[1]
    do = torch.ones(q.shape, dtype=q.dtype)
    out = attention(q, k, v, dropout_p=P, rng_state=STATE)
    torch.testing.assert_close(pull(do)[0], torch.autograd.grad(out, q, do)[0])


def test_heads_that_are_padded_drop_the_same() -> None:
    q, k, v = (t.detach()[..., :60] for t in tensors())
    out = attention(q, k, v, dropout_p=P, rng_state=STATE)
    wanted = by_definition(q, k, v, dropout_mask(STATE, P, (2, 4, 37, 53)), None)
    torch.testing.assert_close(out, wanted)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_p": 1.0}, r"dropout_p is 1\.0; allowed are numbers from 0\.0, for no dropout"),
        ({"dropout_p": -0.1}, r"dropout_p is -0\.1; allowed are"),
        ({"dropout_p": float("nan")}, "dropout_p is nan; allowed are"),
        ({"dropout_p": torch.tensor([0.1, 0.2])}, "dropout_p is a Tensor; allowed are"),
        ({"dropout_p": "0.1"}, r"dropout_p is '0\.1'; allowed are"),
        ({"dropout_p": True}, "dropout_p is True; allowed are"),
        ({"dropout_p": 10**400}, r"dropout_p is 10{9}.*; allowed are"),
        ({"rng_state": STATE}, r"rng_state is given, and dropout_p is 0\.0.*leave it out"),
        (
            {"dropout_p": P, "rng_state": torch.ones(3, dtype=torch.int32)},
            r"rng_state is torch\.int32 \(3,\) on cpu; pass .* torch\.int64 \(2,\) on cpu, such as",
        ),
        ({"dropout_p": P, "rng_state": STATE.to("meta")}, r"torch\.int64 \(2,\) on meta; pass"),
        (
            {"dropout_p": P, "rng_state": torch.ones(4, dtype=torch.int64)[::2]},
            r"rng_state is torch\.int64 \(2,\) on cpu, and not contiguous; pass",
        ),
        (
            {"dropout_p": P, "rng_state": STATE.to_sparse()},
            r"rng_state is torch\.int64 \(2,\) on cpu, and torch\.sparse_coo; pass",
        ),
        ({"dropout_p": P, "rng_state": [1, 2]}, "rng_state is a list; pass a seed and an offset"),
        ({"dropout_p": P, "rng_state": 3}, "rng_state is an int; pass a seed and an offset"),
        ({"dropout_p": P, "rng_state": torch.Generator()}, "rng_state is a Generator; pass a seed"),
        ({"dropout_p": P, "batch_invariant": True}, "batch_invariant is given; dropout is for"),
        ({"dropout_p": P, "split_keys": 64}, "split_keys is given; dropout is for training"),
    ],
)
def test_what_is_no_dropout_is_refused(options: dict[str, Any], message: str) -> None:
    q, k, v = tensors(dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match=message):
        attention(q, k, v, **options)
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match=message):
        attention(*(t.detach() for t in (q, k, v)), config="rung:16", **options)
    assert torch.equal(torch.get_rng_state(), before)


def short_v(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return attention(q, k, v[:, 1:], dropout_p=P)


def a_wrong_config(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return attention(q, k, v, dropout_p=P, config="rung:99")


def a_wrong_gradient_config(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return attention(q, k, v, dropout_p=P, backward_config="rung:99")


def a_misplaced_output(q: Tensor, k: Tensor, v: Tensor) -> Any:
    with torch.no_grad():
        return attention(q, k, v, dropout_p=P, out=q)


def wrong_lengths(q: Tensor, k: Tensor, v: Tensor) -> Any:
    used = torch.tensor([1, 60], dtype=torch.int32)
    return attention(q, k, v, dropout_p=P, seqused_k=used)


def a_traced_scale(q: Tensor, k: Tensor, v: Tensor) -> Any:
    with FlopCounterMode(display=False):
        return attention(q, k, v, dropout_p=P, softmax_scale=-1.0)


def routed(q: Tensor, k: Tensor, v: Tensor) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    with route_sdpa(strict=True):
        return scaled_dot_product_attention(q, k, v, dropout_p=P, scale=-1.0, enable_gqa=True)


def a_pass_of_flash_attn(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flash_attn_forward(q, k, v, P, -1.0, False, -1, -1, 0.0, None, False)


def padded_columns(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return attention(q[..., :61], k[..., :61], v[..., :61], dropout_p=P, softcap=-1.0)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    "refused",
    [
        *(short_v, a_wrong_config, a_wrong_gradient_config, a_misplaced_output, wrong_lengths),
        *(a_traced_scale, routed, a_pass_of_flash_attn, padded_columns),
    ],
    ids=lambda refused: refused.__name__,
)
def test_a_call_that_is_refused_draws_nothing(refused: Callable[..., Any]) -> None:
    q, k, v = tensors(dtype=torch.bfloat16)
    before = torch.get_rng_state()
    with pytest.raises(FlashAttentionError):
        refused(q, k, v)
    assert torch.equal(torch.get_rng_state(), before)
    attention(q, k, v, dropout_p=P)
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_a_call_that_is_refused_for_its_address_draws_nothing() -> None:
    q, k, v = (t.detach() for t in tensors("cuda"))
    attention(q, k, v, dropout_p=P)
    memory = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")
    before = torch.cuda.get_rng_state()
    with pytest.raises(FlashAttentionError, match="16"):
        attention(memory[1:].view(q.shape), k, v, dropout_p=P)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_a_mask_has_the_shape_of_whole_numbers() -> None:
    wanted = dropout_mask(STATE, P, (1, 2, 3, 4))
    sizes = np.array([1, 2, 3, 4])
    assert torch.equal(dropout_mask(STATE, P, tuple(sizes)), wanted)
    assert torch.equal(dropout_mask(STATE, P, list(sizes.astype(np.int32))), wanted)
    wrong: list[Any] = [5, (1, 2, 3), (1, 2, 3, -1), (1, 2, 3, 4.0), (1, 2, 3, True), "1234"]
    for shape in wrong:
        with pytest.raises(UnsupportedError, match=r"; pass \(batch, heads, seq_q, seq_k\), four"):
            dropout_mask(STATE, P, shape)
    with pytest.raises(UnsupportedError, match=r"rng_state is torch\.int64 \(1,\) on cpu; pass"):
        dropout_mask(STATE[:1], P, (1, 2, 3, 4))


@pytest.mark.usefixtures("no_compile")
def test_the_passes_by_themselves_need_a_state() -> None:
    q, k, v = (t.detach() for t in tensors(dtype=torch.float16))
    with pytest.raises(UnsupportedError, match=r"rng_state is missing; pass .*torch\.randint"):
        forward(get_ladder()[15].config, q, k, v, dropout_p=P)
    lse = torch.zeros(2, 4, 37)
    with pytest.raises(UnsupportedError, match=r"rng_state is missing; pass"):
        backward("rung:10", q, q, k, v, q, lse, dropout_p=P)
