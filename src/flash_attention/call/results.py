# SPDX-License-Identifier: Apache-2.0
"""Allocate the results of a call, and fill them where queries see no key."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor


def new_output(q: Tensor, d_v: int, device: str | None = None) -> Tensor:
    """Allocate an output with `d_v` columns. It has q's strides if q has as many columns."""
    if q.shape[-1] == d_v:
        return torch.empty_like(q, device=device)
    return q.new_empty((*q.shape[:-1], d_v), device=device)


def new_gradient(tensor: Tensor, device: str | None = None) -> Tensor:
    """Allocate a gradient. It has the strides of its tensor if that has no gaps and no overlaps,
    and its rows are contiguous."""
    like = torch.empty_like(tensor, device=device)
    if like.stride() == tensor.stride() and (like.shape[-1] == 1 or like.stride(-1) == 1):
        return like
    return tensor.new_empty(tensor.shape, device=device)


def precision_of_lse(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the log-sum-exp of tensors: float32, or float64 if they are."""
    return torch.promote_types(dtype, torch.float32)


def fill_keyless(lse: Tensor, sinks: Tensor | None) -> Tensor:
    """Fill the log-sum-exp of rows that see no key with -inf or the sink of their head."""
    return lse.fill_(-inf) if sinks is None else lse.copy_(sinks.detach()[:, None])
