# SPDX-License-Identifier: Apache-2.0
"""How far a NaN or an infinity of v goes: to the rows that see its key, and at most to other rows
of its head and sequence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.call.call import Call
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.plans import plan_for

KEY = 100


def tensors(*rows: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, *rows, 2, 64, generator=random).to(torch.bfloat16).unbind()
    return q, k, v


def assert_rows_are_the_same(one: Tensor, other: Tensor) -> None:
    assert bool(one.isfinite().all())
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def assert_it_stays(out: Tensor, without: Tensor) -> None:
    """For a NaN or infinity at KEY in head 0 of the first of two sequences, under a causal mask."""
    assert not bool(out[0, KEY:, 0].isfinite().any())
    assert_rows_are_the_same(out[1], without[1])
    assert_rows_are_the_same(out[0, :, 1], without[0, :, 1])


@pytest.mark.parametrize(
    ("config", "rows", "device"),
    [
        *((f"rung:{number}", 256, "cpu") for number in (1, 15, 26, 29)),
        *(pytest.param(None, rows, "cuda", marks=pytest.mark.gpu) for rows in (256, 1000)),
    ],
)
def test_a_nan_of_v_stays_in_its_head(config: str | None, rows: int, device: str) -> None:
    q, k, v = (t.to(device) for t in tensors(2, rows))
    without = attention(q, k, v, causal=True, config=config)
    for value in (math.nan, math.inf):
        v[0, KEY, 0] = value
        assert_it_stays(attention(q, k, v, causal=True, config=config), without)


@pytest.mark.parametrize("number", [15, 29])
def test_a_nan_stays_in_its_packed_sequence(number: int) -> None:
    config = get_ladder(DType.BF16, 64, 2)[number - 1].config
    q, k, v = tensors(300)
    starts = torch.tensor([0, 90, 210, 300], dtype=torch.int32)
    longest: dict[str, Any] = {"max_seqlen_q": 120, "max_seqlen_k": 120}
    call = Call(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True, **longest)
    without = plan_for(call, config).run(call)
    v[KEY] = math.nan
    with_nan = plan_for(call, config).run(call)
    assert isinstance(without, Tensor)
    assert isinstance(with_nan, Tensor)
    assert bool(with_nan[KEY:210].isnan().all())
    assert_rows_are_the_same(with_nan[:90], without[:90])
    assert_rows_are_the_same(with_nan[210:], without[210:])
