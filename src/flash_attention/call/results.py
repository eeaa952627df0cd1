# SPDX-License-Identifier: Apache-2.0
"""Allocate the results of a call, and fill them where queries see no key."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from flash_attention.call.dtype import e4m3

E4M3 = e4m3()
BLOCK_DIMS = ("batch", "heads_k", "blocks")  # of descale factors for blocks of keys
DESCALED_KEYS = 128  # of such a block


def output_dtype(q: Tensor, out: Tensor | None = None) -> torch.dtype:
    """Return the element type of the output: that of q, or for 8-bit tensors that of `out`, by
    default bfloat16."""
    if q.dtype != E4M3:
        return q.dtype
    return torch.bfloat16 if out is None else out.dtype


def unit_descales(q: Tensor) -> dict[str, Tensor]:
    """Return the descale factors of tensors that were not scaled: ones, if they have 8 bits."""
    if q.dtype != E4M3:
        return {}
    one = torch.ones(1, dtype=torch.float32, device=q.device)
    return {"q_descale": one, "k_descale": one, "v_descale": one}


def new_output(
    q: Tensor, d_v: int, device: str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Allocate an output with `d_v` columns. It has q's strides if q has as many columns. `dtype`
    is that of another output than the default."""
    dtype = dtype or output_dtype(q)
    if q.shape[-1] == d_v:
        return torch.empty_like(q, device=device, dtype=dtype)
    return q.new_empty((*q.shape[:-1], d_v), device=device, dtype=dtype)


def new_maxima(
    of_heads: tuple[int, ...], device: torch.device | None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Allocate the maxima of scores, -inf as long as no score was seen."""
    return torch.full(of_heads, -inf, dtype=dtype, device=device)


def results(out: Tensor, lse: Tensor | None, maxima: Tensor | None) -> Tensor | tuple[Tensor, ...]:
    """Return the output, and what else there is, in the order that `attention` returns it."""
    found = tuple(tensor for tensor in (out, lse, maxima) if tensor is not None)
    return out if len(found) == 1 else found


def new_gradient(tensor: Tensor, device: str | None = None) -> Tensor:
    """Allocate a gradient. It has the strides of its tensor if that has no gaps and no overlaps,
    and its rows are contiguous."""
    like = torch.empty_like(tensor, device=device)
    if like.stride() == tensor.stride() and (like.shape[-1] == 1 or like.stride(-1) == 1):
        return like
    return tensor.new_empty(tensor.shape, device=device)


def precision_of_lse(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the log-sum-exp of tensors: float32, or float64 if they are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fill_keyless(lse: Tensor, sinks: Tensor | None) -> Tensor:
    """Fill the log-sum-exp of rows that see no key with -inf or the sink of their head."""
    return lse.fill_(-inf) if sinks is None else lse.copy_(sinks.detach()[:, None])
