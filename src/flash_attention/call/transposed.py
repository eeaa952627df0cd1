# SPDX-License-Identifier: Apache-2.0
"""A v of 8 bits that is given transposed: its keys are contiguous, and not its columns."""

from __future__ import annotations

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.results import BLOCK_DIMS, E4M3

KEYS = 1  # which dimension of a (batch, seq, heads, d) tensor they are


def has_transposed_v(call: Call) -> bool:
    """Whether kernels may read the keys of v as they are, contiguous. Tensors are dense, and a
    descale factor is for all keys of a head."""
    q, k, v = call[:3]
    factors = [f for f in call.descales().values() if isinstance(f, Tensor)]  # others are refused
    described = (call.cu_seqlens_q, call.cu_seqlens_k, call.block_table)
    return (
        (q.dtype == k.dtype == v.dtype == E4M3 and v.ndim == 4)
        and (v.stride(KEYS) == 1 != v.stride(-1))
        and all(tensor is None for tensor in described)
        and all(factor.ndim < len(BLOCK_DIMS) for factor in factors)
    )
