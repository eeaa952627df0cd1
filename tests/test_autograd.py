# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention: float64 differences, torch's own, and what autograd has to be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from flash_attention import KernelConfigError, UnsupportedError, attention
from flash_attention.reference.judge import generate_qkv
from tests.devices import DEVICES
from tests.feature_cases import CASES, Case
from tests.gate import EXHAUSTIVE
from tests.gradients import dense, leaves, recorded


def small(name: str, *sizes: Any, **options: Any) -> Case:
    """A case of two heads: differences take two calls for every element of every input."""
    return Case(name, *sizes, **({"heads": 2, "heads_k": 1} | options))


GRADCHECKED = [
    small("plain", 4, 6, 8, 8, batch=2),
    small("causal", 6, 4, 8, 8, causal=True),
    small("a softcap and a scale", 4, 5, 8, 8, softcap=1.5, softmax_scale=0.7),
    small("sinks", 4, 5, 8, 8, sinks=True),
    small("sinks of rows without a key", 6, 3, 8, 8, sinks=True, causal=True),
    small("a window", 6, 7, 8, 8, window=(2, 1)),
    small("a window of rows without a key", 7, 4, 8, 8, window=(1, 0)),
    small("one head of k and d_v 16", 4, 5, 8, 16, heads=3, heads_k=1),
    small("packed", (3, 0, 4), (5, 2, 0), 8, 8, sinks=True),
    small("packed, keys in use", (3, 2), (5, 4), 8, 8, used=(2, 0), causal=True),
    small("keys in use", 2, 3, 8, 8, batch=2, used=(3, 1)),
    small("packed queries", (2, 1), 3, 8, 8, batch=2),
    small("packed keys", 2, (3, 1), 8, 8, batch=2),
    small("everything", 3, 5, 8, 16, batch=2, sinks=True, softcap=2.0, window=(2, 1), used=(5, 3)),
]


# A gradient of lse as well is the wider check; few cases go without it.
DIFFERENCES = [
    pytest.param(case, lse, id=f"{case.name}-{'lse' if lse else 'out'}")
    for number, case in enumerate(GRADCHECKED)
    for lse in ((False, True) if number % 5 == 0 else (True,))
]


@pytest.mark.parametrize("of_every_element", [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize(("case", "return_lse"), DIFFERENCES)
def test_gradients_are_differences_in_float64(
    case: Case, return_lse: bool, of_every_element: bool
) -> None:
    """Along one random direction of all elements together, or along each of them."""
    made = case.make(dtype=torch.float64)
    asked = dict(made.arguments)
    sinks = asked.pop("sinks")
    given = leaves(*(t.nan_to_num() for t in (made.q, made.k, made.v)))
    given += [] if sinks is None else leaves(sinks.double())

    def function(q: Tensor, k: Tensor, v: Tensor, *sinks: Tensor) -> Any:
        options = asked | ({"sinks": sinks[0]} if sinks else {})
        if not return_lse:
            return attention(q, k, v, **options)
        out, lse = attention(q, k, v, **options, return_lse=True)
        return out, lse.masked_fill(lse == -torch.inf, 0)

    assert gradcheck(function, given, fast_mode=not of_every_element)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_torch(dtype: torch.dtype, is_causal: bool, device: str) -> None:
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("kernels take 16 bits")
    shape: dict[str, Any] = {"n_heads_k": 2}
    given = leaves(*generate_qkv(2, 70, 4, 64, dtype, device, **shape))
    out = attention(*given, causal=is_causal)
    weights = torch.randn_like(out)
    exact = [t.detach().double().requires_grad_() for t in given]
    q, k, v = (t.transpose(1, 2) for t in exact)
    wanted = scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    wanted = wanted.transpose(1, 2)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    found = torch.autograd.grad(out, given, weights)
    for mine, theirs in zip(
        found, torch.autograd.grad(wanted, exact, weights.double()), strict=True
    ):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (3,), (1, 3)], ids=str)
def test_only_gradients_that_are_asked_for_are_computed(
    which: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [*dense(device), torch.ones(4, device=device, requires_grad=True)]
    q, k, v, sinks = every
    wanted = torch.autograd.grad(attention(q, k, v, sinks=sinks).sum(), every)
    q, k, v, sinks = given = [t.detach().requires_grad_(i in which) for i, t in enumerate(every)]
    with recorded(monkeypatch) as calls:
        attention(q, k, v, sinks=sinks).sum().backward()
    assert list(calls[0].wanted) == [i in which for i in range(4)]
    for i, (tensor, exact) in enumerate(zip(given, wanted, strict=True)):
        if i in which:  # on a GPU another kernel may compute it
            torch.testing.assert_close(tensor.grad, exact, rtol=2e-2, atol=1e-2)
        else:
            assert tensor.grad is None


@pytest.mark.parametrize("device", DEVICES)
def test_lse_alone_has_a_gradient(device: str) -> None:
    q, k, v = dense(device, torch.bfloat16)
    out, lse = attention(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v))
    assert not dv.any()
    exact = [t.detach().double().requires_grad_() for t in (q, k)]
    scores = torch.einsum("bqhd,bkhd->bhqk", exact[0], exact[1].repeat_interleave(2, 2)) / 4
    for given, wanted in zip(
        (dq, dk), torch.autograd.grad(scores.logsumexp(-1).sum(), exact), strict=True
    ):
        torch.testing.assert_close(given.double(), wanted, rtol=2e-2, atol=2e-2)
    assert out.requires_grad
    assert lse.requires_grad
    assert not attention(q.detach(), k.detach(), v.detach(), return_lse=True)[1].requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_parts_of_the_keys_can_be_merged_and_trained(device: str) -> None:
    q, k, v = dense(device)
    weights = torch.randn(q.shape, device=device)
    wanted = torch.autograd.grad((attention(q, k, v) * weights).sum(), (q, k, v))
    outs, lses = zip(
        *(
            attention(q, k[:, part], v[:, part], return_lse=True)
            for part in (slice(7), slice(7, 20))
        ),
        strict=True,
    )
    shares = torch.softmax(torch.stack(lses), 0).transpose(-1, -2)[..., None]
    merged = (torch.stack(outs) * shares).sum(0)
    given = torch.autograd.grad((merged * weights).sum(), (q, k, v))
    for mine, whole in zip(given, wanted, strict=True):
        torch.testing.assert_close(mine, whole, rtol=5e-2, atol=5e-2)


def misaligned(tensor: Tensor) -> Tensor:
    room = tensor.new_empty(tensor.numel() + 1)
    return room[1:].view(tensor.shape).copy_(tensor)


DOS: dict[str, Callable[[Tensor], Tensor]] = {
    "an expanded number": lambda t: t.new_ones(()).expand_as(t),
    "an expanded row": lambda t: t[:, :1].expand_as(t),
    "columns first": lambda t: t.transpose(1, 3).contiguous().transpose(1, 3),
    "heads first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "rows with gaps": lambda t: torch.cat((t, t[..., :3]), -1)[..., : t.shape[-1]],
    "a step to the left": misaligned,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", DOS)
def test_gradients_of_the_output_may_have_any_strides(
    kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dense(device)
    out = attention(*given)
    do = DOS[kind](torch.randn_like(out))
    with recorded(monkeypatch) as calls:
        found = torch.autograd.grad(out, given, do, retain_graph=True)
    strides = calls[0].do.stride()
    assert strides[-1] == 1
    assert all(stride and stride % 8 == 0 for stride in strides[:-1])
    assert calls[0].do.data_ptr() % 16 == 0
    for mine, exact in zip(
        found, torch.autograd.grad(out, given, do.contiguous().clone()), strict=True
    ):
        torch.testing.assert_close(mine, exact)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_lse_may_be_expanded_and_of_another_dtype(device: str) -> None:
    given = dense(device)
    out, lse = attention(*given, return_lse=True)
    found = torch.autograd.grad(
        lse, given, torch.ones((), device=device).expand_as(lse), retain_graph=True
    )
    wide = torch.autograd.grad(
        (out, lse),
        given,
        (torch.zeros_like(out, dtype=torch.float64), torch.ones_like(lse).double()),
    )
    for mine, other in zip(found, wide, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_have_the_strides_of_dense_tensors(device: str) -> None:
    given = [
        t.transpose(1, 2).contiguous().transpose(1, 2).detach().requires_grad_()
        for t in dense(device)
    ]
    for gradient, tensor in zip(
        torch.autograd.grad(attention(*given).sum(), given), given, strict=True
    ):
        assert gradient.stride() == tensor.stride()


@contextmanager
def deterministic_algorithms(warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_determinism_is_asked_for_by_keyword_and_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dense()
    with recorded(monkeypatch) as calls:
        attention(*given).sum().backward()
        attention(*given, deterministic=True).sum().backward()
        out = attention(*given).sum()
        for warn_only in (False, True):
            with deterministic_algorithms(warn_only):
                out.backward(retain_graph=True)
    assert [call.deterministic for call in calls] == [False, True, True, True]
    for given_switch in ("yes", 2):
        with pytest.raises(UnsupportedError, match=r"deterministic is .*; pass True or False"):
            attention(*given, deterministic=given_switch)  # type: ignore[call-overload]
        with torch.no_grad(), pytest.raises(UnsupportedError, match="deterministic is"):
            attention(*given, deterministic=given_switch)  # type: ignore[call-overload]


@pytest.mark.usefixtures("no_compile")
def test_a_backward_config_of_the_forward_pass_is_refused() -> None:
    q, k, v = dense()
    with pytest.raises(KernelConfigError, match="a config of the forward pass; pass a"):
        attention(q, k, v, backward_config="hopper(BF16, 64, 2, 128, 2): tma+specialised")


def test_a_forward_config_on_the_cpu_is_emulated_and_torch_computes_its_gradients() -> None:
    given = leaves(*generate_qkv(1, 70, 2, 64, torch.float16))
    out = attention(*given, config="rung:12")
    weights = torch.randn_like(out)
    found = torch.autograd.grad(out, given, weights)
    for mine, exact in zip(
        found, torch.autograd.grad(attention(*given), given, weights), strict=True
    ):
        torch.testing.assert_close(mine, exact, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("no_compile")
def test_what_has_no_gradient_is_refused() -> None:
    q, k, v = dense()
    room = torch.empty_like(q)
    with pytest.raises(UnsupportedError, match="out is given and a tensor requires grad"):
        attention(q, k, v, out=room)
    with pytest.raises(UnsupportedError, match="out is given and a tensor requires grad"):
        attention(q.detach(), k.detach(), v.detach(), out=room.detach().requires_grad_())
    pages: dict[str, Any] = {
        "block_table": torch.zeros(2, 1, dtype=torch.int32),
        "seqused_k": torch.ones(2, dtype=torch.int32),
    }
    with pytest.raises(UnsupportedError, match=r"no gradients of a paged .* torch\.no_grad\(\)"):
        attention(q, k, v, **pages)
    with torch.no_grad():
        assert attention(q, k, v, out=room) is room
        attention(q, k, v, **pages)


def test_other_things_than_tensors_are_still_named() -> None:
    q, k, v = dense()
    nothing: Any = None
    with pytest.raises(UnsupportedError, match="q is a NoneType"):
        attention(nothing, k, v)
    with pytest.raises(UnsupportedError, match="must agree in d_head"):
        attention(q, k[..., :8], v)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_of_every_case_on_a_gpu_are_those_on_the_cpu(
    case: Case, dtype: torch.dtype
) -> None:
    of_devices = []
    for device in ("cuda", "cpu"):
        made = case.make("cpu", dtype)
        asked: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in made.arguments.items()
        }
        given = leaves(*(t.to(device) for t in (made.q, made.k, made.v)))
        if asked["sinks"] is not None:
            asked["sinks"] = asked["sinks"].requires_grad_()
            given.append(asked["sinks"])
        out, lse = attention(*given[:3], **asked, return_lse=True)
        rows = made.q.shape[-3] - case.padding  # the others are of no sequence
        generator = torch.Generator().manual_seed(1)
        do, dlse = (torch.randn(t.shape, generator=generator).to(t) for t in (out, lse))
        if case.padding:
            do[rows:], dlse[..., rows:] = 0, 0
        dlse[lse == -torch.inf] = 0
        found = torch.autograd.grad((out, lse), given, (do, dlse))
        of_devices.append([t.cpu().double() for t in found])
    for mine, exact in zip(*of_devices, strict=True):
        step = 2**-7 if dtype == torch.bfloat16 else 2**-10
        torch.testing.assert_close(
            mine, exact, rtol=0, atol=8 * step * max(1, float(exact.abs().max()))
        )


@pytest.mark.usefixtures("no_compile")
def test_an_expanded_gradient_without_elements_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "1")
    k = torch.randn(1, 40, 2, 64).bfloat16()
    q = k[:, :0].clone().requires_grad_()
    key = k.clone().requires_grad_()
    attention(q, key, k).sum().backward()
    assert q.grad is not None
    assert key.grad is not None
    assert q.grad.shape == (1, 0, 2, 64)
    assert not key.grad.any()


def test_gradients_in_a_batch_are_refused() -> None:
    q = torch.randn(1, 8, 2, 8, requires_grad=True)
    out = attention(q, q.detach(), q.detach())
    with pytest.raises(UnsupportedError, match=r"asked for at once .* call torch\.func\.vmap"):
        torch.autograd.grad(out, q, torch.ones(3, *out.shape), is_grads_batched=True)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("foo", "'hopper_backward"),
        (3, "is an int; pass a FlashBackwardKernelConfig or a HopperBackwardKernelConfig"),
        ("(FP16, 128, 64, 32, 4): async+load_2_2_0_tiles", "pass a FlashBackwardKernelConfig or a"),
    ],
)
def test_a_bad_config_of_the_backward_pass_is_refused_by_the_forward_pass(
    config: Any, said: str
) -> None:
    q = torch.randn(1, 8, 2, 8, requires_grad=True)
    with pytest.raises(KernelConfigError, match=said):
        attention(q, q, q, backward_config=config)
