# SPDX-License-Identifier: Apache-2.0
"""CallArgs: the arguments that the kernels of all passes have, and C++ asserts of a layout."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

from flash_attention.call.problem import Problem

Fields = Sequence[tuple[str, type[Any]]]


class Strides(ctypes.Structure):
    """The element strides of a (batch, seq, heads, d_head) tensor, whose last stride is 1."""

    _fields_ = (
        ("batch", ctypes.c_int64),
        ("seq", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class CallArgs(ctypes.Structure):
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


def call_values(problem: Problem) -> dict[str, Any]:
    """Return the values of the CallArgs of a problem, which hold no addresses."""
    rows = problem.lse_shape[-1]
    left, right = problem.window or (0, 0)
    return {
        "lse_batch_stride": problem.heads * rows if problem.total_q is None else 0,
        "lse_head_stride": rows,
        "batch": problem.batch,
        "heads": problem.heads,
        "heads_per_kv": problem.heads_per_kv,
        "seq_len_q": problem.seq_q,
        "seq_len_k": problem.seq_k,
        "d_qk": problem.d_head,
        "d_v": problem.d_v,
        "window_left": left,
        "window_right": right,
        "softmax_scale": problem.softmax_scale,
        "softcap": problem.softcap,
    }


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
