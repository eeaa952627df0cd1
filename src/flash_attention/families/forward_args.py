# SPDX-License-Identifier: Apache-2.0
"""ForwardKernelArgs: the run-time arguments of a forward kernel."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import ClassVar

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.call_args import (
    DROPOUT,
    CallArgs,
    Fields,
    Strides,
    layout_asserts,
    parameter,
    put_call_lengths,
    put_call_values,
    put_dropout,
)
from flash_attention.families.traced_args import arguments_type, put_absolute


class DescaleStrides(ctypes.Structure):
    """The element strides of a (batch, heads_k, blocks) tensor of descale factors."""

    _fields_ = (("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("block", ctypes.c_int64))


class ForwardKernelArgs(CallArgs):
    """Mirror of `fa::ForwardKernelArgs` (include/fa/forward_args.cuh)."""

    _fields_: ClassVar[Fields] = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),  # float32 (batch, heads, seq_q), null if not requested
        ("block_table", ctypes.c_void_p),  # int32 (batch, pages), null if the KV cache is not paged
        (
            "o_partial",
            ctypes.c_void_p,
        ),  # of split-KV, float32 (partials, rows of a tile, d_v)
        (
            "lse_partial",
            ctypes.c_void_p,
        ),  # their log-sum-exp, float32 (partials, rows of a tile)
        ("tile_counter", ctypes.c_void_p),  # int32, zero between launches; null if not used
        ("q_stride", Strides),
        ("k_stride", Strides),
        ("v_stride", Strides),
        ("o_stride", Strides),
        ("block_table_stride", ctypes.c_int64),
        ("key_blocks", ctypes.c_int32),
        ("split_blocks", ctypes.c_int32),
        ("pages", ctypes.c_int32),
        ("q_descale", ctypes.c_void_p),  # float32; null for tensors of 16 bits
        ("k_descale", ctypes.c_void_p),
        ("v_descale", ctypes.c_void_p),
        ("q_descale_stride", DescaleStrides),
        ("k_descale_stride", DescaleStrides),
        ("v_descale_stride", DescaleStrides),
        *DROPOUT,
        ("max_score", ctypes.c_void_p),  # float32 (heads,), null if it is not asked for
    )

    def put_lengths(self, problem: Problem) -> None:
        """Store what follows from the lengths of a problem, as far as splits have no part in it."""
        put_call_lengths(self, problem)
        if problem.page_keys:
            self.block_table_stride = problem.table_stride
            self.pages = problem.pages


PARAMETER = parameter(ForwardKernelArgs)
LAYOUT_ASSERTS = layout_asserts(ForwardKernelArgs)
FIRST_ADDRESS: int = ForwardKernelArgs.q.offset
pack_addresses = struct.Struct("<6Q").pack_into
"""Packs the addresses of q, k, v, o, lse and block_table, which follow each other from
FIRST_ADDRESS on."""


def forward_args(
    problem: Problem, views: Sequence[TensorView], *, key_blocks: int = 0, split_blocks: int = 0
) -> ForwardKernelArgs:
    """Make the arguments of a forward kernel without addresses, from views of q, k, v and o."""
    args: ForwardKernelArgs = arguments_type(ForwardKernelArgs, problem)(
        key_blocks=key_blocks, split_blocks=split_blocks
    )
    put_absolute(args, problem)
    fill_forward_args(args, problem, views)
    return args


def fill_forward_args(
    args: ForwardKernelArgs, problem: Problem, views: Sequence[TensorView]
) -> None:
    """Fill in what follows from the problem, and the strides of q, k, v and o."""
    put_call_values(args, problem)
    args.put_lengths(problem)
    put_dropout(args, problem)
    for name, view in zip("qkvo", views, strict=True):
        setattr(args, f"{name}_stride", Strides(*view.strides[:3]))
    for name, strides in problem.descale_strides:
        setattr(args, f"{name}_stride", DescaleStrides(*strides))
