# SPDX-License-Identifier: Apache-2.0
"""MergeKernelArgs: the run-time arguments of the kernel that merges partial results."""

from __future__ import annotations

import ctypes
from typing import ClassVar

from flash_attention.families.call_args import Fields, KernelArgs, Strides

TENSORS = ("o", "lse", "o_rest", "lse_rest", "merged_o", "merged_lse")


class MergeKernelArgs(KernelArgs):
    """Mirror of `fa::MergeKernelArgs` (include/fa/merge_args.cuh)."""

    _fields_: ClassVar[Fields] = (
        *((name, ctypes.c_void_p) for name in TENSORS),
        *((f"{name}_stride", Strides) for name in TENSORS),
        ("o_part_stride", ctypes.c_int64),
        ("lse_part_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("parts", "rows", "seq_len", "heads", "columns")),
    )
