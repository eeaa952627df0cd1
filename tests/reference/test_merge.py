# SPDX-License-Identifier: Apache-2.0
"""Merges by torch: the formula, rows without keys, and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention.call.merge_call import MergeCall
from flash_attention.reference.merge import merge_gradients, merge_with_torch
from tests.merge_calls import parts_of


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_weights_are_the_softmax_of_the_lses(count: int, packed: bool) -> None:
    call = parts_of(count, 8, torch.float64, torch.float64, packed=packed)
    o, lse = merge_with_torch(call, torch.float64)
    outs, lses = torch.cat((call.o[None], call.o_rest)), torch.cat((call.lse[None], call.lse_rest))
    weights = lses.softmax(0).mT[..., None]
    wanted = torch.where(weights > 0, weights * outs, 0).sum(0)
    sees = torch.ones(o.shape[-3], dtype=torch.bool)
    sees[[2, 3] if count < 3 else [3]] = False
    torch.testing.assert_close(o[..., sees, :, :], wanted[..., sees, :, :])
    torch.testing.assert_close(lse[..., sees], lses.logsumexp(0)[..., sees])
    assert not o[..., ~sees, :, :].any()
    assert bool((lse[..., ~sees] == -torch.inf).all())


def leaves(call: MergeCall) -> MergeCall:
    return MergeCall(*(t.detach().clone().requires_grad_() for t in call))


def test_gradients_are_those_of_the_formula() -> None:
    call = leaves(parts_of(4, 8, torch.float64, torch.float64))
    merged = merge_with_torch(call, torch.float64)
    do, dlse = (torch.randn_like(t) for t in merged)
    seen = merged[1] != -torch.inf
    wanted = torch.autograd.grad((merged[0], merged[1][seen]), call, (do, dlse[seen]))
    o, lse = (t.detach() for t in merged)
    found = merge_gradients(MergeCall(*(t.detach() for t in call)), (o, lse), do, dlse)
    for mine, theirs in zip(found, wanted, strict=True):
        assert bool(mine.isfinite().all())
        torch.testing.assert_close(mine, theirs)


def test_gradients_are_differences() -> None:
    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return merge_with_torch(MergeCall(*tensors), torch.float64)

    given = parts_of(3, 4, torch.float64, torch.float64)
    tensors = [t[..., 4:7, :, :] if t.ndim > 3 else t for t in (given.o, given.o_rest)]
    lses = [t[..., 4:7] for t in (given.lse, given.lse_rest)]
    call = leaves(MergeCall(tensors[0], lses[0], tensors[1], lses[1]))
    assert torch.autograd.gradcheck(function, tuple(call))
