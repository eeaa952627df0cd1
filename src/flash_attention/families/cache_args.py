# SPDX-License-Identifier: Apache-2.0
"""CacheKernelArgs: the run-time arguments of the kernel that updates a KV cache."""

from __future__ import annotations

import ctypes
from typing import ClassVar

from flash_attention.families.call_args import Fields, KernelArgs, Strides

TENSORS = (
    *("q", "k", "v", "rotated_q", "k_cache", "v_cache", "cos", "sin"),
    *("cu_seqlens_q", "cu_seqlens_k_new", "seqlens", "rotary_seqlens"),
    *("table", "index", "leftpad"),
    *("used", "starts", "own_table"),
)
STRIDED = ("q", "rotated_q", "k", "v", "k_cache", "v_cache")
"""The tensors with rows, heads and columns."""
ROW_STRIDED = ("table", "own_table", "cos", "sin")
NUMBERS = (
    *("heads", "heads_k", "seq_len_q", "d_qk", "d_v", "new_rows", "all_in_use"),
    *("entries", "entry_rows", "table_rows", "max_rows", "own_page_rows"),
    *("rotary_dim", "rotary_rows", "one_position"),
)


class CacheKernelArgs(KernelArgs):
    """Mirror of `fa::CacheKernelArgs` (include/fa/cache_args.cuh)."""

    _fields_: ClassVar[Fields] = (
        *((name, ctypes.c_void_p) for name in TENSORS),
        *((f"{name}_stride", Strides) for name in STRIDED),
        *((f"{name}_stride", ctypes.c_int64) for name in ROW_STRIDED),
        *((name, ctypes.c_int32) for name in NUMBERS),
    )
