# SPDX-License-Identifier: Apache-2.0
"""BackwardKernelArgs: the run-time arguments of a backward kernel."""

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

STAT_BLOCK = 128  # kStatBlock of include/fa/backward_args.cuh
SEMAPHORE_ROWS = 64  # kSemaphoreRows of the same file
VIEWS = ("d_o", "q", "k", "v", "o", "dq", "dk", "dv")
"""The tensors of a backward pass, in the order of the views that a recipe gets."""


class BackwardKernelArgs(CallArgs):
    """Mirror of `fa::BackwardKernelArgs` (include/fa/backward_args.cuh)."""

    _fields_: ClassVar[Fields] = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("o", ctypes.c_void_p),
        ("d_o", ctypes.c_void_p),
        ("dq", ctypes.c_void_p),
        ("dk", ctypes.c_void_p),
        ("dv", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),  # float32 (batch, heads, seq_q)
        ("dlse", ctypes.c_void_p),  # the same shape, null if the gradient is zero
        ("dsinks", ctypes.c_void_p),  # float32 (heads,)
        ("lse_log2", ctypes.c_void_p),  # float32 (heads, stat_rows)
        ("delta", ctypes.c_void_p),  # float32 (heads, stat_rows)
        ("dq_sum", ctypes.c_void_p),  # float32 (heads, stat_rows, d_head)
        ("dq_semaphore", ctypes.c_void_p),  # int32 (heads, stat_rows / 64)
        ("ds", ctypes.c_void_p),
        ("dk_sum", ctypes.c_void_p),  # float32 (key_sums, heads_k, key_rows, d_head)
        ("dv_sum", ctypes.c_void_p),
        ("tile_counter", ctypes.c_void_p),  # int32[2], zero between launches; null if not used
        *((f"{name}_stride", Strides) for name in ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")),
        ("stat_rows", ctypes.c_int32),
        ("key_rows", ctypes.c_int32),
        ("total_q", ctypes.c_int32),
        ("total_k", ctypes.c_int32),
        ("part_head", ctypes.c_int32),  # of the part of the work that a launch does
        ("part_heads", ctypes.c_int32),
        ("part_key", ctypes.c_int32),
        ("part_keys", ctypes.c_int32),
        ("head_splits", ctypes.c_int32),
        ("key_sums", ctypes.c_int32),
        *DROPOUT,
    )

    def put_lengths(self, problem: Problem) -> None:
        """Store what follows from the lengths of a problem, with one part for all of the work."""
        put_call_lengths(self, problem)
        _pack_sizes(
            *(self, FIRST_SIZE),
            stat_rows(problem),
            key_rows(problem),
            problem.total_q or 0,
            problem.total_k or 0,
            *(0, problem.batch * problem.heads_k),
            *(0, problem.seq_k),
        )


PARAMETER = parameter(BackwardKernelArgs)
LAYOUT_ASSERTS = layout_asserts(BackwardKernelArgs)
FIRST_ADDRESS: int = BackwardKernelArgs.q.offset
FIRST_SIZE: int = BackwardKernelArgs.stat_rows.offset
_pack_sizes = struct.Struct("<8i").pack_into
pack_addresses = struct.Struct("<11Q").pack_into
"""Packs the addresses of q, k, v, o, d_o, dq, dk, dv, lse, dlse and dsinks, which follow each other
from FIRST_ADDRESS on."""


def stat_rows(problem: Problem) -> int:
    """Return the rows of a head in the arrays of row statistics, padding included."""
    return _padded_rows(problem.total_q, problem.seq_q, problem.batch)


def key_rows(problem: Problem) -> int:
    """Return the rows of a head of k in sums over heads, padding included."""
    return _padded_rows(problem.total_k, problem.seq_k, problem.batch)


def _padded_rows(total: int | None, longest: int, batch: int) -> int:
    if total is None:
        return batch * _in_blocks(longest)
    return _in_blocks(total + batch * STAT_BLOCK)


def stat_bytes(problem: Problem, columns: int = 1) -> int:
    """Return the bytes of a float32 array with `columns` columns for every row of every head."""
    return 4 * problem.heads * stat_rows(problem) * columns


def _in_blocks(rows: int) -> int:
    return -(-rows // STAT_BLOCK) * STAT_BLOCK


def backward_args(problem: Problem, views: Sequence[TensorView]) -> BackwardKernelArgs:
    """Make the arguments of a backward kernel without addresses, from views in the order of
    VIEWS."""
    args: BackwardKernelArgs = arguments_type(BackwardKernelArgs, problem)()
    put_absolute(args, problem)
    put_call_values(args, problem)
    args.put_lengths(problem)
    args.head_splits = args.key_sums = 1
    put_dropout(args, problem)
    for name, view in zip(VIEWS, views, strict=True):
        setattr(args, f"{name}_stride", Strides(*view.strides[:3]))
    return args
