# SPDX-License-Identifier: Apache-2.0
"""Batches of more sequences, or heads, than the second dimension of a grid has CTAs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention
from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Wanted
from flash_attention.call.call import Call
from flash_attention.families.backward_steps import prepare_step
from flash_attention.families.fit import MAX_GRID_X, MAX_GRID_YZ
from flash_attention.launch.plan import Plan


def plan_of(batch: int, heads: int) -> Plan:
    """The plan of one query and one key for each sequence."""
    q = torch.empty(batch, 1, heads, 64, dtype=torch.bfloat16)
    lse = torch.empty(batch, heads, 1)
    call = BackwardCall(q, Call(q, q, q, q), lse, None, Wanted())
    return Plan(call, arch=ARCHES["sm_90"])


@pytest.mark.parametrize(("batch", "heads"), [(70_000, 1), (1, 70_000), (265_625, 2)])
def test_every_launch_of_a_backward_pass_is_allowed(batch: int, heads: int) -> None:
    for step in plan_of(batch, heads).recipe.steps:
        x, y, z = step.geometry.grid
        assert x <= MAX_GRID_X
        assert max(y, z) <= MAX_GRID_YZ


def test_more_rows_than_a_launch_takes_are_refused() -> None:
    given = plan_of(1, 1).problem
    assert isinstance(given, BackwardProblem)
    problem = replace(given, batch=1 << 16, heads=1 << 15)
    with pytest.raises(UnsupportedError, match="2147483648 blocks of 128 rows"):
        prepare_step(problem, "sm_90a")


def assert_gradients_are_right(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    """Each query has one key, so P is 1: dV is dO, and the others are 0 but for rounding."""
    do = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), do)
    torch.testing.assert_close(dv, do)
    assert float(dq.abs().max()) < 1e-3
    assert float(dk.abs().max()) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("batch", "heads"), [(70_000, 1), (1, 70_000)])
def test_gradients_of_a_large_batch(batch: int, heads: int, deterministic: bool) -> None:
    shape = (3, batch, 1, heads, 64)
    q, k, v = torch.randn(shape, dtype=torch.bfloat16, device="cuda").unbind()
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = attention(*leaves, deterministic=deterministic)
    assert_gradients_are_right(q, k, v, out)


@pytest.mark.gpu
def test_gradients_of_many_packed_sequences() -> None:
    count = 265_625
    q, k, v = torch.randn(3, count, 1, 64, dtype=torch.bfloat16, device="cuda").unbind()
    for tensor in (q, k, v):
        tensor.requires_grad_()
    starts = torch.arange(count + 1, dtype=torch.int32, device="cuda")
    lengths: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    out = attention(q, k, v, max_seqlen_q=1, max_seqlen_k=1, **lengths)
    assert_gradients_are_right(q, k, v, out)
