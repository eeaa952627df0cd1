# SPDX-License-Identifier: Apache-2.0
"""ForwardKernelArgs: the run-time arguments of a kernel, and C++ asserts of their layout."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView

PARAMETER = "const __grid_constant__ fa::ForwardKernelArgs args"


class Strides(ctypes.Structure):
    """The element strides of a (batch, seq, heads, d_head) tensor, whose last stride is 1."""

    _fields_ = (
        ("batch", ctypes.c_int64),
        ("seq", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class ForwardKernelArgs(ctypes.Structure):
    """Mirror of `fa::ForwardKernelArgs` (include/fa/kernel_args.cuh)."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),  # float32 (batch, heads, seq_q), null if not requested
        ("sinks", ctypes.c_void_p),  # float32 (heads,), null if there are none
        ("cu_seqlens_q", ctypes.c_void_p),  # int32 (batch + 1,), null if q is not packed
        ("cu_seqlens_k", ctypes.c_void_p),
        ("seqused_k", ctypes.c_void_p),  # int32 (batch,), null if all keys are used
        ("block_table", ctypes.c_void_p),  # int32 (batch, pages), null if the KV cache is not paged
        ("o_parts", ctypes.c_void_p),  # of split-KV, float32 (parts, rows of a tile, d_v)
        ("lse_parts", ctypes.c_void_p),  # their log-sum-exp, float32 (parts, rows of a tile)
        ("tile_counter", ctypes.c_void_p),  # int32[2], zero between launches; null if not used
        ("q_stride", Strides),
        ("k_stride", Strides),
        ("v_stride", Strides),
        ("o_stride", Strides),
        ("block_table_stride", ctypes.c_int64),
        ("lse_batch_stride", ctypes.c_int64),
        ("lse_head_stride", ctypes.c_int64),
        ("batch", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("heads_per_kv", ctypes.c_int32),
        ("seq_len_q", ctypes.c_int32),
        ("seq_len_k", ctypes.c_int32),
        ("d_v", ctypes.c_int32),
        ("key_blocks", ctypes.c_int32),
        ("split_blocks", ctypes.c_int32),
        ("window_left", ctypes.c_int32),
        ("window_right", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("d_qk", ctypes.c_int32),
    )


pack_addresses = struct.Struct("<4Q").pack_into
"""Packs the addresses of q, k, v and o, which are the first arguments."""


def layout_asserts() -> str:
    """Return C++ static_asserts that the compiler lays out the structs as ctypes does.

    NVRTC has no offsetof without the standard headers. __INTADDR__ is a built-in of its front end.
    """
    return "\n".join(
        f"static_assert({claim});"
        for struct in (Strides, ForwardKernelArgs)
        for claim in (
            f"sizeof(fa::{struct.__name__}) == {ctypes.sizeof(struct)}",
            *(
                f"__INTADDR__(&((fa::{struct.__name__}*)0)->{name})"
                f" == {getattr(struct, name).offset}"
                for name, *_ in struct._fields_
            ),
        )
    )


def forward_args(
    problem: Problem, views: Sequence[TensorView], *, key_blocks: int = 0, split_blocks: int = 0
) -> ForwardKernelArgs:
    """Make the arguments of a forward kernel without addresses, from views of q, k, v and o."""
    rows = problem.lse_shape[-1]
    left, right = problem.window or (0, 0)
    args = ForwardKernelArgs(
        lse_batch_stride=problem.heads * rows if problem.total_q is None else 0,
        lse_head_stride=rows,
        batch=problem.batch,
        heads=problem.heads,
        heads_per_kv=problem.heads_per_kv,
        seq_len_q=problem.seq_q,
        seq_len_k=problem.seq_k,
        d_qk=problem.d_head,
        d_v=problem.d_v,
        window_left=left,
        window_right=right,
        softmax_scale=problem.softmax_scale,
        softcap=problem.softcap,
        key_blocks=key_blocks,
        split_blocks=split_blocks,
        block_table_stride=problem.table_stride,
    )
    for name, view in zip("qkvo", views, strict=True):
        setattr(args, f"{name}_stride", Strides(*view.strides[:3]))
    return args
