# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, and in 16 bits with every step rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flash_attention.call.call import Call, Keywords
from flash_attention.call.results import E4M3
from flash_attention.reference.formula import evaluate

if TYPE_CHECKING:
    from typing_extensions import Unpack


def oracle(q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[Keywords]) -> Tensor:
    """Compute `attention` of these arguments in float64, on the tensors' device."""
    return evaluate(Call(q, k, v, **keywords), torch.float64)[0]


def oracle_lse(q: Tensor, k: Tensor, **keywords: Unpack[Keywords]) -> Tensor:
    """Compute the lse of `attention` in float64: (batch, heads, seq_q) or (heads, total_q)."""
    return evaluate(Call(q, k, k[..., :1], **keywords), torch.float64, lse=True)[1]


def attention_16bit(q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[Keywords]) -> Tensor:
    """Compute the oracle's formula in the tensors' own precision, rounding every step. Of tensors
    of 8 bits only the weights are rounded to 8 bits, and the result is that of float32."""
    call = Call(q, k, v, **keywords)
    if q.dtype == E4M3:
        return evaluate(call, torch.float32, weights_of_8_bits=True)[0]
    return evaluate(call, q.dtype)[0]
