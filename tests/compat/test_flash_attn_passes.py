# SPDX-License-Identifier: Apache-2.0
"""flash-attn's forward and backward pass by themselves, against sums and gradients that are written
out, and put together again from parts of the keys."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import flash_attn_passes
from flash_attention.errors import UnsupportedError

flash_attn_backward: Any = flash_attn_passes.flash_attn_backward
flash_attn_forward: Any = flash_attn_passes.flash_attn_forward
flash_attn_varlen_backward: Any = flash_attn_passes.flash_attn_varlen_backward
flash_attn_varlen_forward: Any = flash_attn_passes.flash_attn_varlen_forward

HEADS, HEADS_K, D = 4, 2, 32
SCALE = 0.2
OPTIONS = {
    "plain": (False, -1, -1, 0.0),
    "causal": (True, -1, -1, 0.0),
    "window": (False, 3, 2, 0.0),
    "softcap": (True, -1, -1, 1.5),
}  # causal, window_size_left, window_size_right, softcap
DEVICES = [
    ("cpu", torch.float64, 1e-9),
    pytest.param("cuda", torch.bfloat16, 2e-2, marks=pytest.mark.gpu),
]


def draw(*shapes: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]


def written_out(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, left: int, right: int, softcap: float
) -> tuple[Tensor, Tensor]:
    """Attention of (rows, heads, d) tensors in float64, and its log-sum-exp, (heads, rows)."""
    q, k, v = (t.double().transpose(0, 1) for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // HEADS_K, dim=0) for t in (k, v))
    scores = q @ k.mT * SCALE
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows, keys = scores.shape[1:]
    place = torch.arange(rows, device=q.device)[:, None] + keys - rows
    key = torch.arange(keys, device=q.device)
    right = 0 if causal else right
    seen = torch.ones_like(scores[0], dtype=torch.bool)
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    scores = scores.masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1), scores.logsumexp(-1)


def dense(device: str, dtype: torch.dtype, rows: int = 9, keys: int = 13) -> list[Tensor]:
    """dout, q, k and v."""
    of_keys = (2, keys, HEADS_K, D)
    of_rows = (2, rows, HEADS, D)
    return draw(of_rows, of_rows, of_keys, of_keys, dtype=dtype, device=device)


def close(given: Tensor, wanted: Tensor, tolerance: float) -> None:
    wanted = wanted.detach().double()
    assert given.shape == wanted.shape
    error = (given.double() - wanted).abs().max()
    assert float(error) <= tolerance * (1 + float(wanted.abs().max()))


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_pass_of_dense_tensors_and_its_gradients(
    options: tuple[Any, ...], device: str, dtype: torch.dtype, tolerance: float
) -> None:
    dout, q, k, v = dense(device, dtype)
    out, lse, probabilities, state = flash_attn_forward(
        *(q.requires_grad_(), k, v, 0.0, SCALE, *options, None, False)
    )
    assert not out.requires_grad
    assert probabilities.shape == (0,)
    assert (state.shape, state.dtype) == ((2,), torch.int64)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    results = [written_out(*rows, *options) for rows in zip(*leaves, strict=True)]
    wanted, wanted_lse = (torch.stack(found) for found in zip(*results, strict=True))
    close(out, wanted, tolerance)
    close(lse, wanted_lse, tolerance)
    wanted.backward(dout.double())
    rooms = [torch.full_like(t, math.nan) for t in (q, k, v)]
    sums = flash_attn_backward(
        *(dout, q, k, v, out, lse, *rooms, 0.0, SCALE, *options, None, False, state)
    )
    for room, leaf in zip(rooms, leaves, strict=True):
        assert leaf.grad is not None
        close(room, leaf.grad, tolerance)
    assert (sums.shape, sums.dtype) == ((2, HEADS, 128), torch.float32)
    close(sums[..., :9], (dout.double() * wanted).sum(-1).mT, max(tolerance, 1e-5))
    assert not sums[..., 9:].any()


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_pass_of_packed_sequences_and_its_gradients(
    options: tuple[Any, ...], device: str, dtype: torch.dtype, tolerance: float
) -> None:
    rows, keys = [0, 5, 5, 12], [0, 6, 8, 17]
    shapes = ((12, HEADS, D), (12, HEADS, D), (17, HEADS_K, D), (17, HEADS_K, D))
    dout, q, k, v = draw(*shapes, dtype=dtype, device=device)
    starts = [torch.tensor(s, dtype=torch.int32, device=device) for s in (rows, keys)]
    lengths = (*starts, 7, 9)
    out, lse, *_ = flash_attn_varlen_forward(
        *(q, k, v, *lengths, 0.0, SCALE, *options, None, False)
    )
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    results = [
        written_out(leaves[0][a:b], leaves[1][c:d], leaves[2][c:d], *options)
        for a, b, c, d in zip(rows, rows[1:], keys, keys[1:], strict=False)
    ]
    wanted = torch.cat([found for found, _ in results])
    close(out, wanted, tolerance)
    close(lse, torch.cat([found for _, found in results], dim=1), tolerance)
    wanted.backward(dout.double())
    rooms = [torch.full_like(t, math.nan) for t in (q, k, v)]
    sums = flash_attn_varlen_backward(
        *(dout, q, k, v, out, lse, *rooms, *lengths, 0.0, SCALE, *options, None, True)
    )
    for room, leaf in zip(rooms, leaves, strict=True):
        assert leaf.grad is not None
        close(room, leaf.grad, tolerance)
    assert sums.shape == (HEADS, 12 + 128 * 3)
    delta = (dout.double() * wanted).sum(-1).T
    close(sums[:, :5], delta[:, :5], max(tolerance, 1e-5))
    close(sums[:, 5 + 2 * 128 : 12 + 2 * 128], delta[:, 5:], max(tolerance, 1e-5))
    assert not sums[:, 5 : 5 + 2 * 128].any()


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
def test_parts_of_the_keys_make_the_whole(
    device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """As ranks of a ring do: forward passes are merged, backward passes get what was merged."""
    dout, q, k, v = dense(device, dtype)
    options: tuple[Any, ...] = OPTIONS["plain"]
    rest = (0.0, SCALE, *options, None, False)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    found = [written_out(*rows, *options)[0] for rows in zip(*leaves, strict=True)]
    wanted = torch.stack(found)
    wanted.backward(dout.double())
    parts = [slice(0, 5), slice(5, None)]
    results = [flash_attn_forward(q, k[:, p], v[:, p], *rest)[:2] for p in parts]
    lse = torch.logaddexp(*(part for _, part in results))
    out = sum(part * torch.exp(own - lse).mT[..., None] for part, own in results).to(dtype)
    close(out, wanted, tolerance)
    dq, whole = torch.zeros_like(leaves[0]), [torch.empty_like(t) for t in (k, v)]
    for p in parts:
        room = torch.empty_like(q)
        rooms = (room, *(t[:, p] for t in whole))
        flash_attn_backward(dout, q, k[:, p], v[:, p], out, lse, *rooms, *rest)
        dq += room
    for given, leaf in zip((dq, *whole), leaves, strict=True):
        assert leaf.grad is not None
        close(given, leaf.grad, tolerance)


def test_keys_that_are_not_used_and_pages() -> None:
    q, k, v = draw((7, HEADS, D), *((12, HEADS_K, D),) * 2, dtype=torch.float64, device="cpu")
    rest = (0.0, SCALE, True)
    starts = torch.tensor([0, 3, 7], dtype=torch.int32), torch.tensor([0, 4, 12]).int()
    used = torch.tensor([4, 5], dtype=torch.int32)
    given = flash_attn_varlen_forward(q, k, v, *starts, 4, 8, *rest, seqused_k=used)[0]
    wanted = torch.cat(
        [
            written_out(q[:3], k[:4], v[:4], *OPTIONS["causal"])[0],
            written_out(q[3:], k[4:9], v[4:9], *OPTIONS["causal"])[0],
        ]
    )
    close(given, wanted, 1e-9)
    pages = [t.view(3, 4, HEADS_K, D) for t in (k, v)]
    table = torch.tensor([[0, 0], [1, 2]], dtype=torch.int32)
    starts_k = torch.tensor([0, 4, 9], dtype=torch.int32)
    paged = flash_attn_varlen_forward(
        *(q, *pages, starts[0], starts_k, 4, 5, *rest), block_table=table
    )[0]
    close(paged, wanted, 1e-9)
    table = torch.tensor([[0, 0], [1, 2]], dtype=torch.int32)
    again = flash_attn_varlen_forward(
        *(q, *pages, starts[0], starts[1], 4, 8, *rest), block_table=table, seqused_k=used
    )[0]
    close(again, wanted, 1e-9)


def test_gradients_that_are_not_wanted_are_left_out() -> None:
    dout, q, k, v = dense("cpu", torch.float64)
    rest = (0.0, SCALE, True, -1, -1, 0.0, None, False)
    out, lse, *_ = flash_attn_forward(q, k, v, *rest)
    every = [torch.empty_like(t) for t in (q, k, v)]
    flash_attn_backward(dout, q, k, v, out, lse, *every, *rest)
    some = [None, torch.empty_like(k), None]
    flash_attn_backward(dout, q, k, v, out, lse, *some, *rest)
    assert some[1] is not None
    close(some[1], every[1], 1e-12)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_compiled_pass_is_one_graph(options: tuple[Any, ...]) -> None:
    dout, q, k, v = (t.float() for t in dense("cpu", torch.float64))
    rest = (0.0, SCALE, *options, None, False)

    def both(dout: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out, lse, *_ = flash_attn_forward(q, k, v, *rest)
        rooms = [torch.empty_like(t) for t in (q, k, v)]
        sums = flash_attn_backward(dout, q, k, v, out, lse, *rooms, *rest)
        return out, lse, *rooms, sums

    torch._dynamo.reset()
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    before = [t.clone() for t in (dout, q, k, v)]
    torch.testing.assert_close(compiled(dout, q, k, v), both(dout, q, k, v))
    assert all(map(torch.equal, before, (dout, q, k, v)))


def test_the_state_of_dropout_goes_from_pass_to_pass() -> None:
    dout, q, k, v = dense("cpu", torch.float32)
    rest = (0.25, SCALE, True, -1, -1, 0.0, None, False)
    out, lse, _, state = flash_attn_forward(q, k, v, *rest)
    rooms = [torch.empty_like(t) for t in (q, k, v)]
    flash_attn_backward(dout, q, k, v, out, lse, *rooms, *rest, state)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    options: dict[str, Any] = {"causal": True, "softmax_scale": SCALE}
    again = attention(*leaves, **options, dropout_p=0.25, rng_state=state)
    torch.testing.assert_close(out, again)
    for room, wanted in zip(rooms, torch.autograd.grad(again, leaves, dout), strict=True):
        torch.testing.assert_close(room, wanted)


def refused(
    message: str, function: Callable[..., Any], *arguments: object, **named: object
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        function(*arguments, **named)


def test_what_is_not_supported_is_refused_before_anything_is_written() -> None:
    dout, q, k, v = dense("cpu", torch.float32)
    rest = (SCALE, False, -1, -1, 0.0)
    out, lse, *_ = flash_attn_forward(q, k, v, 0.0, *rest, None, False)
    refused("dropout_p is 1.0", flash_attn_forward, q, k, v, 1.0, *rest, None, False)
    slopes = torch.ones(HEADS + 1)
    refused("alibi_slopes has shape", flash_attn_forward, q, k, v, 0.0, *rest, slopes, False)
    refused("return_softmax is True", flash_attn_forward, q, k, v, 0.0, *rest, None, True)
    rooms = [torch.full_like(t, 7.0) for t in (q, k, v)]
    tensors = (dout, q, k, v, out, lse)
    refused("rng_state is missing", flash_attn_backward, *tensors, *rooms, 0.1, *rest, None, False)
    wrong = [rooms[0], rooms[1], rooms[2][:, 1:]]
    refused("dv has shape", flash_attn_backward, *tensors, *wrong, 0.0, *rest, None, False)
    wrong = [rooms[0], rooms[1], rooms[2].double()]
    refused("must be like v", flash_attn_backward, *tensors, *wrong, 0.0, *rest, None, False)
    cut = (*tensors[:5], lse[..., 1:])
    refused("lse has shape", flash_attn_backward, *cut, *rooms, 0.0, *rest, None, False)
    assert all(bool((room == 7.0).all()) for room in rooms)
    starts = torch.tensor([0, 9], dtype=torch.int32), torch.tensor([0, 13], dtype=torch.int32)
    packed = (q[0], k[0], v[0], *starts, 9, 13, 0.0, SCALE, False)
    refused("leftpad_k is given", flash_attn_varlen_forward, *packed, leftpad_k=starts[0][:1])
    refused("zero_tensors is True", flash_attn_varlen_forward, *packed, zero_tensors=True)
    eight = q.to(torch.float8_e4m3fn)
    refused("_flash_attn_forward has no", flash_attn_forward, eight, k, v, 0.0, *rest, None, False)


SIGNATURES = {
    flash_attn_forward: "q k v dropout_p softmax_scale causal window_size_left window_size_right"
    " softcap alibi_slopes return_softmax",
    flash_attn_varlen_forward: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p"
    " softmax_scale causal window_size_left=-1 window_size_right=-1 softcap=0.0 alibi_slopes=None"
    " return_softmax=False block_table=None leftpad_k=None seqused_k=None zero_tensors=False",
    flash_attn_backward: "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal"
    " window_size_left window_size_right softcap alibi_slopes deterministic rng_state=None",
    flash_attn_varlen_backward: "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k"
    " max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size_left window_size_right"
    " softcap alibi_slopes deterministic rng_state=None zero_tensors=False",
}


@pytest.mark.parametrize("function", SIGNATURES)
def test_names_order_and_defaults_of_passes(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
    assert " ".join(shown) == SIGNATURES[function]
