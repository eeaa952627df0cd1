# SPDX-License-Identifier: Apache-2.0
"""CallArgs: the arguments that the kernels of all passes have, and C++ asserts of a layout."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from flash_attention.call.dropout import STEPS, THRESHOLD_BITS, kept_steps
from flash_attention.call.problem import Problem

Fields = Sequence[tuple[str, type[Any]]]


class Strides(ctypes.Structure):
    """The element strides of a (batch, seq, heads, d_head) tensor, whose last stride is 1."""

    _fields_ = (
        ("batch", ctypes.c_int64),
        ("seq", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class KernelArgs(ctypes.Structure):
    """The arguments of kernels. Calls take turns with them, so they know what they hold of the last
    one."""

    sized: Any = None  # whose lengths
    scratch: Any = None
    stream: int | None = None  # whose tile counter, and whose memory for `scratch` if it is kept
    keeps_scratch: bool = False  # else they own it, or every launch allocates it
    memory: Any = None  # for `scratch`, which they own
    lse_form: Any = None  # the sizes and strides of the log-sum-exp, if they are known
    parameters: Any = None  # of the kernels, which have the address of the arguments


class CallArgs(KernelArgs):
    """Mirror of `fa::CallArgs` (include/fa/core.cuh)."""

    _fields_: ClassVar[Fields] = (
        ("sinks", ctypes.c_void_p),  # float32 (heads,), null if there are none
        ("cu_seqlens_q", ctypes.c_void_p),  # int32 (batch + 1,), null if q is not packed
        ("cu_seqlens_k", ctypes.c_void_p),
        ("seqused_k", ctypes.c_void_p),  # int32 (batch,), null if all keys are used
        ("lse_batch_stride", ctypes.c_int64),
        ("lse_head_stride", ctypes.c_int64),
        ("batch", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("heads_per_kv", ctypes.c_int32),
        ("seq_len_q", ctypes.c_int32),
        ("seq_len_k", ctypes.c_int32),
        ("d_qk", ctypes.c_int32),
        ("d_v", ctypes.c_int32),
        ("window_left", ctypes.c_int32),
        ("window_right", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


DROPOUT: Fields = (
    ("rng_state", ctypes.c_void_p),  # int64 (2,), null if there is no dropout
    ("dropout_zeros", ctypes.c_uint32 * THRESHOLD_BITS),
    ("dropout_scale", ctypes.c_float),  # of the weights that are kept
)
"""The arguments of dropout, the last of the kernels that have it (include/fa/attn/dropout.cuh)."""


EXTRAS_ADDRESS: int = CallArgs.sinks.offset
pack_extras = struct.Struct("<4Q").pack_into
"""Packs the addresses of sinks, cu_seqlens_q, cu_seqlens_k and seqused_k, which follow each other
from EXTRAS_ADDRESS on."""
FIRST_LENGTH: int = CallArgs.lse_batch_stride.offset
_pack_lengths = struct.Struct("<2q5i").pack_into


def put_call_values(args: CallArgs, problem: Problem) -> None:
    """Store the CallArgs of a problem, which hold no addresses."""
    args.d_qk, args.d_v = problem.d_head, problem.d_v
    args.softmax_scale, args.softcap = problem.softmax_scale, problem.softcap
    put_call_lengths(args, problem)


def put_dropout(args: Any, problem: Problem) -> None:
    """Store the arguments of DROPOUT apart from the address. A kernel compares a bit of 32 numbers
    with one of the threshold at once, of which it has 32 copies."""
    kept = kept_steps(problem.dropout_p)
    args.dropout_scale = STEPS / kept
    if not problem.dropout_p:
        return
    for bit in range(THRESHOLD_BITS):
        args.dropout_zeros[bit] = 0 if kept >> bit & 1 else 0xFFFFFFFF


def put_call_lengths(args: CallArgs, problem: Problem) -> None:
    """Store what follows from the lengths of a problem, from FIRST_LENGTH on, and the window that
    lengths may limit."""
    total, heads, seq_q = problem.total_q, problem.heads, problem.seq_q
    _pack_lengths(
        *(args, FIRST_LENGTH),
        heads * seq_q if total is None else 0,
        seq_q if total is None else total,
        problem.batch,
        heads,
        heads // (problem.heads_k or 1),
        seq_q,
        problem.seq_k,
    )
    if problem.window is not None:
        args.window_left, args.window_right = problem.window


def fields_of(struct: type[ctypes.Structure]) -> list[str]:
    """Return the names of all fields of a structure, those of its base first."""
    bases = [base for base in reversed(struct.__mro__) if "_fields_" in vars(base)]
    return [name for base in bases for name, *_ in vars(base)["_fields_"]]


def parameter(struct: type[ctypes.Structure]) -> str:
    """Return the kernel parameter that passes the arguments."""
    return f"const __grid_constant__ fa::{struct.__name__} args"


def layout_asserts(arguments: type[ctypes.Structure]) -> str:
    """Return C++ static_asserts that the compiler lays out the structs as ctypes does.

    NVRTC has no offsetof without the standard headers. __INTADDR__ is a built-in of its front end.
    """
    return "\n".join(
        f"static_assert({claim});"
        for struct in (Strides, arguments)
        for claim in (
            f"sizeof(fa::{struct.__name__}) == {ctypes.sizeof(struct)}",
            *(
                f"__INTADDR__(&((fa::{struct.__name__}*)0)->{name})"
                f" == {getattr(struct, name).offset}"
                for name in fields_of(struct)
            ),
        )
    )
