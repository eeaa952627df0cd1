# SPDX-License-Identifier: Apache-2.0
"""TangentKernelArgs: the run-time arguments of a kernel for the output and its tangent."""

from __future__ import annotations

import ctypes
import struct
from typing import ClassVar

from flash_attention.families.call_args import Fields, layout_asserts, parameter
from flash_attention.families.forward_args import ForwardKernelArgs


class TangentKernelArgs(ForwardKernelArgs):
    """Mirror of `fa::TangentKernelArgs` (include/fa/sm90/tangent/args.cuh)."""

    _fields_: ClassVar[Fields] = (
        ("q_tangent", ctypes.c_void_p),
        ("k_tangent", ctypes.c_void_p),
        ("v_tangent", ctypes.c_void_p),
        ("o_tangent", ctypes.c_void_p),
        ("lse_tangent", ctypes.c_void_p),  # float32, null if not requested
    )


PARAMETER = parameter(TangentKernelArgs)
LAYOUT_ASSERTS = layout_asserts(TangentKernelArgs)
FIRST_TANGENT: int = TangentKernelArgs.q_tangent.offset
pack_tangents = struct.Struct("<5Q").pack_into
"""Packs the addresses of all tangents, which follow each other from FIRST_TANGENT on."""
