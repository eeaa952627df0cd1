# SPDX-License-Identifier: Apache-2.0
"""Mask tensors of torch's scaled_dot_product_attention as score and mask functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.call.function import Function
from flash_attention.errors import one
from flash_attention.scores import additive_bias


def mask_refusal(attn_mask: object, query: Tensor, key: Tensor) -> str | None:
    """Say why a mask tensor is left to torch, or return None. The tensors are (batch, heads, seq,
    d) or (heads, seq, d)."""
    if not isinstance(attn_mask, Tensor):
        return f"attn_mask is {one(type(attn_mask).__name__)}; pass a tensor"
    if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():
        return (
            "attn_mask is given in an exported function, which takes no function of scores; for a"
            " causal mask pass is_causal=True"
        )
    if attn_mask.is_nested:
        return "attn_mask is nested; pass a dense one"
    if attn_mask.requires_grad and torch.is_grad_enabled():
        return "attn_mask requires grad, and masks have no gradient here; pass attn_mask.detach()"
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return (
            f"attn_mask is {attn_mask.dtype}; allowed are torch.bool, torch.float32 and the dtype"
            f" of query, {query.dtype}"
        )
    if attn_mask.device != query.device:
        return f"attn_mask is on {attn_mask.device}, query on {query.device}; move it"
    scores = (*query.shape[:-1], key.shape[-2])
    sizes = zip(reversed(attn_mask.shape), reversed(scores), strict=False)
    fits = 2 <= attn_mask.ndim <= len(scores) and all(size in (1, own) for size, own in sizes)
    if not fits:
        return (
            f"attn_mask has shape {tuple(attn_mask.shape)}, which cannot be expanded to that of the"
            f" scores, {scores}"
        )
    return None


def mask_options(attn_mask: Tensor) -> Keywords:
    """Convert a mask tensor to keywords of `attention`: bools say which keys a query sees, floats
    are added to scaled scores."""
    if not attn_mask.numel():  # there are no scores
        return {}
    if attn_mask.dtype != torch.bool:
        return {"function": Function(score=additive_bias(attn_mask.detach()))}

    def mask(*at: Any) -> Any:
        places = zip(at[-attn_mask.ndim :], attn_mask.shape, strict=True)
        return attn_mask[tuple(index if size > 1 else 0 for index, size in places)]

    return {"function": Function(mask=mask)}
