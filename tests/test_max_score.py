# SPDX-License-Identifier: Apache-2.0
"""`return_max` of `attention`: what it returns, and how torch sees it."""

from __future__ import annotations

from sys import modules
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention, check, distributed
from flash_attention.reference.judge import cu_seqlens

CHECK = "flash_attention_workbench.check"  # whose name in the package is the function
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors(device: str = "cpu", d: int = 64) -> list[Tensor]:
    """q, k and v that require grad: double on the CPU, of 16 bits on a GPU."""
    random = torch.Generator().manual_seed(2)
    dtype = torch.float64 if device == "cpu" else torch.bfloat16
    sizes = ((2, 37, 4, d), (2, 53, 2, d), (2, 53, 2, d))
    made = (torch.randn(size, generator=random, dtype=torch.float64) for size in sizes)
    return [t.to(device, dtype).requires_grad_() for t in made]


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    k = k.double().repeat_interleave(q.shape[-2] // k.shape[-2], -2)
    scores: Tensor = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) * q.shape[-1] ** -0.5
    return scores


def maxima(q: Tensor, k: Tensor) -> Tensor:
    return scores_of(q, k).amax((0, 2, 3))


def near(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("softcap", [0.0, 0.5])
def test_results_come_in_their_order_and_others_stay_as_they_are(
    device: str, softcap: float
) -> None:
    q, k, v = tensors(device)
    plain, logarithms = attention(q, k, v, softcap=softcap, return_lse=True)
    out, lse, both = attention(q, k, v, softcap=softcap, return_lse=True, return_max=True)
    alone, found = attention(q, k, v, softcap=softcap, return_max=True)
    near(found, maxima(q, k))
    assert torch.equal(both, found)
    for one, other in ((out, plain), (alone, plain), (lse, logarithms)):
        torch.testing.assert_close(one, other)


def test_masked_scores_do_not_count_on_the_cpu() -> None:
    q, k, v = (t.detach() for t in tensors())
    k[:, -1] = 20 * q[:, 0, ::2]  # which the first query does not see
    seen = torch.ones(37, 53, dtype=torch.bool).tril(53 - 37)
    scores = scores_of(q, k)
    exact = scores.masked_fill(~seen, -torch.inf).amax((0, 2, 3))
    assert bool((exact < maxima(q, k))[::2].all())
    near(attention(q, k, v, causal=True, return_max=True)[1], exact)
    window = torch.arange(53) - torch.arange(37)[:, None] - (53 - 37)
    exact = scores.masked_fill((window < -9) | (window > 3), -torch.inf).amax((0, 2, 3))
    near(attention(q, k, v, window=(9, 3), return_max=True)[1], exact)


def test_packed_sequences_have_one_maximum_for_all() -> None:
    q, k, v = (t.detach() for t in tensors())
    lengths_q, lengths_k = (37, 20), (11, 53)
    packed = [
        torch.cat([one[:n] for one, n in zip(t, lengths, strict=True)])
        for t, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    of_each = [
        maxima(q[i : i + 1, :n], k[i : i + 1, :m])
        for i, (n, m) in enumerate(zip(lengths_q, lengths_k, strict=True))
    ]
    options: dict[str, Any] = {
        "cu_seqlens_q": cu_seqlens(lengths_q),
        "cu_seqlens_k": cu_seqlens(lengths_k),
        "max_seqlen_q": max(lengths_q),
        "max_seqlen_k": max(lengths_k),
    }
    _, found = attention(packed[0], packed[1], packed[2], return_max=True, **options)
    near(found, torch.stack(of_each).amax(0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("return_lse", [False, True])
def test_gradients_are_those_without_it_and_it_has_none(device: str, return_lse: bool) -> None:
    q, k, v = tensors(device)
    for _ in range(2):  # the second time by a plan that is known, on a GPU
        out, *_, found = attention(q, k, v, return_lse=return_lse, return_max=True)
        assert not found.requires_grad
        do = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
        mine = torch.autograd.grad(out, (q, k, v), do)
        other = torch.autograd.grad(attention(q, k, v), (q, k, v), do)
        for one, two in zip(mine, other, strict=True):
            torch.testing.assert_close(one, two)


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_function_returns_it(device: str) -> None:
    q, k, v = tensors(device)
    torch._dynamo.reset()

    def step(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return attention(q, k, v, causal=True, return_max=True)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    out, found = compiled(q, k, v)
    plain, exact = step(q, k, v)
    torch.testing.assert_close(found, exact)
    assert not found.requires_grad
    for one, two in zip(
        *(torch.autograd.grad(o.sum(), (q, k, v)) for o in (out, plain)), strict=True
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("asked", [False, True])
def test_the_operator_passes_the_checks_of_torch(asked: bool) -> None:
    q, k, v = tensors()
    operator = torch.ops.flash_attention.dense.default
    torch.library.opcheck(operator, (q, k, v), {"return_max": asked})
    assert operator(q, k, v, return_max=asked)[2].shape == ((4,) if asked else (0,))


def test_transforms_of_torch_func() -> None:
    q, k, v = (t.detach() for t in tensors())

    def loss(q: Tensor) -> tuple[Tensor, Tensor]:
        out, found = attention(q, k, v, return_max=True)
        return out.square().sum(), found

    gradient, found = torch.func.grad(loss, has_aux=True)(q)
    near(found, maxima(q, k))
    leaf = q.clone().requires_grad_()
    attention(leaf, k, v).square().sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    each = torch.vmap(lambda q: attention(q, k, v, return_max=True)[1])(torch.stack([q, 2 * q]))
    near(each, torch.stack([maxima(q, k), maxima(2 * q, k)]))


@pytest.mark.parametrize("device", DEVICES)
def test_padded_columns_change_nothing(device: str) -> None:
    q, k, v = tensors(device, d=60)
    out, lse, found = attention(q, k, v, return_lse=True, return_max=True)
    near(found, maxima(q, k))
    assert out.shape[-1] == 60
    assert lse.shape == (2, 4, 37)


def test_check_judges_it(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (t.detach().bfloat16() for t in tensors())
    for options in ({}, {"emulate": True, "gradients": True}):
        report = check(q, k, v, causal=True, return_max=True, **options)
        assert report.ok
        assert report.max_scores is not None
        assert "maxima" in str(report)
    assert check(q, k, v).max_scores is None
    honest = modules[CHECK].attention_on_cpu

    def damaged(*args: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        out, lse, found = honest(*args)
        found[2] += 0.01
        return out, lse, found

    monkeypatch.setattr(modules[CHECK], "attention_on_cpu", damaged)
    report = check(q, k, v, return_max=True)
    assert not report.ok
    assert report.output.ok
    assert report.max_scores is not None
    assert report.max_scores.worst_index == (2,)


def test_what_is_refused() -> None:
    q, k, v = (t.detach() for t in tensors())
    with pytest.raises(UnsupportedError, match="return_max is 'yes'; pass True or False"):
        attention(q, k, v, return_max="yes")  # type: ignore[call-overload]
    with pytest.raises(UnsupportedError, match=r"softmax_scale is -1\.0; .* pass -q"):
        attention(q, k, v, return_max=True, softmax_scale=-1.0)
    with pytest.raises(TypeError, match=r"return_max.*: this function returns no maxima"):
        distributed.attention(q, k, v, None, return_max=True)  # type: ignore[call-overload]
    unspecialised = "rung:17"
    with pytest.raises(UnsupportedError, match=r"return_max is asked for, .* without a producer"):
        attention(*(t.half() for t in (q, k, v)), return_max=True, config=unspecialised)
