# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, and in 16 bits with every step rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flash_attention.call.call import Call, CallFeatures
from flash_attention.reference.formula import evaluate

if TYPE_CHECKING:
    from typing_extensions import Unpack


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **keywords: Unpack[CallFeatures],
) -> Tensor:
    """Attention in float64, on the tensors' device."""
    call = Call(q, k, v, softmax_scale=softmax_scale, causal=causal, **keywords)
    return evaluate(call, torch.float64)[0]


def oracle_lse(
    q: Tensor,
    k: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **keywords: Unpack[CallFeatures],
) -> Tensor:
    """log(sum_j exp(score_j)) in float64, (batch, heads, seq_q) or (heads, total_q)."""
    call = Call(q, k, k[..., :1], softmax_scale=softmax_scale, causal=causal, **keywords)
    return evaluate(call, torch.float64, lse=True)[1]


def attention_16bit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **keywords: Unpack[CallFeatures],
) -> Tensor:
    """The oracle's formula in the tensors' own precision, every step rounded."""
    call = Call(q, k, v, softmax_scale=softmax_scale, causal=causal, **keywords)
    return evaluate(call, q.dtype)[0]
