# SPDX-License-Identifier: Apache-2.0
"""Scores of any magnitude: P is bounded, and belongs to the scores that the maximum came from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention import attention, backward
from flash_attention.call.backward_call import Gradients
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from tests.gate import in_turn


def inputs(
    factor: float, dtype: torch.dtype, shape: tuple[int, int, int, int], seq_q: int, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """q and k of normal numbers times `factor`, and a normal v."""
    batch, seq, heads, d = shape
    random = torch.Generator().manual_seed(int(factor))
    q, k, v = (torch.randn(batch, rows, heads, d, generator=random) for rows in (seq_q, seq, seq))
    q, k, v = (t.to(device, dtype) for t in (q * factor, k * factor, v))
    return q, k, v


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
    out: Tensor = (weights @ v).transpose(1, 2)
    return out


def assert_right(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Two keys whose scores differ by less than float32 tells apart are not to be expected here."""
    assert bool(out.isfinite().all())
    wrong = ((out.double() - exact(q, k, v)).abs().amax(-1) > 0.05).sum()
    assert int(wrong) == 0


# The rung before FusedExp2, the last of sm_80, and those that rescale always, lazily, and stale.
@pytest.mark.parametrize(("number", "factor"), in_turn([1, 15, 22, 25, 29], [1e7, 1e4, 1e2]))
def test_a_rung_is_right(number: int, factor: float) -> None:
    config = get_ladder(DType.BF16, 64, 1)[number - 1].config
    q, k, v = inputs(factor, torch.bfloat16, (1, 384, 1, 64), config.B_r, "cpu")
    assert_right(emulate(config, q, k, v).output, q, k, v)


def exact_gradients(do: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    return torch.autograd.grad(exact(*leaves), leaves, do.double())


def gradient_of(q: Tensor, k: Tensor) -> Tensor:
    """A normal dO, but 0 for a row with two keys that float32 hardly tells apart."""
    scores = q.double().transpose(1, 2) @ k.double().transpose(1, 2).mT
    largest, second = scores.topk(2).values.unbind(-1)
    told_apart = (largest - second > 2**-17 * largest.abs()).transpose(1, 2)
    assert float(told_apart.double().mean()) > 0.9
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q)
    return do * told_apart[..., None]


def assert_gradients_are_right(
    gradients: Gradients, do: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> None:
    """One weight of a row is 1, so dV is a sum of rows of dO, and dP - delta is 0 but for its
    rounding, which dQ and dK multiply by the keys and queries."""
    size = float(torch.maximum(q.abs().max(), k.abs().max()))
    allowed = (5e-5 * size, 2e-4 * size, 0.15)
    for name, mine, other, most in zip(
        Gradients._fields, gradients, exact_gradients(do, q, k, v), allowed, strict=False
    ):
        assert mine is not None
        error = float((mine.double() - other).abs().max())
        assert error <= most, f"{name} is off by {error:.3g}, allowed is {most:.3g}"


# The first and the last of sm_80, the first of sm_90, one per schedule, the last.
@pytest.mark.parametrize(("number", "factor"), in_turn([1, 10, 11, 16, 20], [1e7, 1e4, 1e3]))
def test_gradients_of_a_rung_are_right(number: int, factor: float) -> None:
    config = get_ladder(DType.BF16, 64, 1, pass_=Pass.BACKWARD)[number - 1].config
    q, k, v = inputs(factor, torch.bfloat16, (1, 192, 1, 64), 128, "cpu")
    o, lse = attention(q, k, v, return_lse=True)
    do = gradient_of(q, k)
    assert_gradients_are_right(backward(config, do, q, k, v, o, lse), do, q, k, v)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        (torch.float16, 1e3),
        (torch.float16, 1e4),
        (torch.bfloat16, 1e3),
        (torch.bfloat16, 1e4),
        (torch.bfloat16, 1e8),
    ],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("d_head", [64, 80, 128, 192, 256])
def test_gradients_are_right_on_a_gpu(
    d_head: int, deterministic: bool, dtype: torch.dtype, factor: float
) -> None:
    q, k, v = inputs(factor, dtype, (2, 700, 4, d_head), 700, "cuda")
    do = gradient_of(q, k)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = attention(*leaves, deterministic=deterministic)
    mine = Gradients(*torch.autograd.grad(out, leaves, do))
    assert_gradients_are_right(mine, do, q, k, v)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(torch.float16, factor) for factor in (30, 1e3, 1e4)]
    + [(torch.bfloat16, factor) for factor in (30, 1e3, 1e4, 1e5, 1e12)],
    ids=str,
)
@pytest.mark.parametrize(
    ("shape", "seq_q"),
    [
        ((1, 1024, 4, 128), 1024),
        ((1, 1024, 4, 64), 1024),
        ((1, 1024, 4, 256), 1024),
        ((2, 700, 4, 80), 700),
        ((1, 1000, 4, 64), 1),
        ((1, 8192, 4, 128), 3),
    ],
    ids=str,
)
def test_attention_is_right_on_a_gpu(
    shape: tuple[int, int, int, int], seq_q: int, dtype: torch.dtype, factor: float
) -> None:
    q, k, v = inputs(factor, dtype, shape, seq_q, "cuda")
    assert_right(attention(q, k, v), q, k, v)
