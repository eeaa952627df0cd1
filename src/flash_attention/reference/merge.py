# SPDX-License-Identifier: Apache-2.0
"""Merges with operations of torch, which autograd and torch.compile follow."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.call.merge_call import MergeCall
from flash_attention.call.results import precision_of_lse


def merge_with_torch(call: MergeCall, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Merge the parts of a checked call in float32 or better."""
    lses = torch.cat((call.lse[None], call.lse_rest))
    most = lses.detach().amax(0)
    most = torch.where(most == -torch.inf, 0, most)
    weights = torch.exp(lses - most)
    total = weights.sum(0)
    empty = total == 0
    total = torch.where(empty, 1, total)
    merged = torch.zeros((), dtype=precision_of_lse(dtype), device=call.o.device)
    for part, weight in zip((call.o, *call.o_rest), weights / total, strict=True):
        factor = weight.mT[..., None]
        merged = merged + factor * torch.where(factor == 0, 0, part.to(weight.dtype))
    return merged.to(dtype), torch.where(empty, -torch.inf, most + total.log())


def merge_gradients(
    call: MergeCall, merged: tuple[Tensor, Tensor], do: Tensor, dlse: Tensor
) -> MergeCall:
    """Return the gradients of the parts, given those of the merged results."""
    o, lse = merged
    precision = lse.dtype
    known = torch.where(lse == -torch.inf, 0, lse)
    do = do.to(precision)

    def of(part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.exp(part_lse - known)
        d_part = torch.where(weight.mT[..., None] == 0, 0, weight.mT[..., None] * do)
        apart = torch.where(weight.mT[..., None] == 0, 0, part.to(precision) - o.to(precision))
        d_lse = weight * ((do * apart).sum(-1).mT + dlse)
        return d_part.to(part.dtype), d_lse

    return MergeCall(*of(call.o, call.lse), *of(call.o_rest, call.lse_rest))
