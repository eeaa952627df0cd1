# SPDX-License-Identifier: Apache-2.0
"""Scores of any magnitude: P is bounded, and belongs to the scores that the maximum came from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulation import emulate


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


# The rung before FusedExp2, the last of sm_80, one that rescales every block, lazily, and watched.
@pytest.mark.parametrize("factor", [1e2, 1e4, 1e7])
@pytest.mark.parametrize("number", [1, 15, 22, 25, 29])
def test_a_rung_is_right(number: int, factor: float) -> None:
    config = get_ladder(DType.BF16, 64, 1)[number - 1].config
    q, k, v = inputs(factor, torch.bfloat16, (1, 384, 1, 64), config.B_r, "cpu")
    assert_right(emulate(config, q, k, v).output, q, k, v)


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
