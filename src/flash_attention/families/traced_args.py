# SPDX-License-Identifier: Apache-2.0
"""The run-time arguments of kernels with a user's function, beside those of their pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from flash_attention.call.function import Function
from flash_attention.call.problem import Problem
from flash_attention.families.bindings import PROGRAM
from flash_attention.program.cuda_reader import cuda_text
from flash_attention.program.derivative import differentiate
from flash_attention.program.layout import (
    address_offset,
    arguments,
    arguments_size,
    sum_offset,
)
from flash_attention.program.nodes import SCORE, Program


@cache
def _with_function(
    base: type[ctypes.Structure], size: int, *addresses: tuple[str, int]
) -> type[ctypes.Structure]:
    """Mirror of `fa::attn::WithFunction` (include/fa/attn/function_args.cuh). Addresses of what has
    a tensor map have names, and are behind so many bytes of the arguments of a program."""
    fields = [
        ("list_entries", ctypes.c_void_p),
        ("list_counts", ctypes.c_void_p),
        ("bounds", ctypes.c_void_p),
        ("list_stride", ctypes.c_int32),
        ("list_batches", ctypes.c_int32),
        ("list_heads", ctypes.c_int32),
        ("absolute", ctypes.c_int32),
        ("program", ctypes.c_uint64 * 0),
    ]
    end = 0
    for name, offset in addresses:
        fields.append((f"before_{name}", ctypes.c_uint64 * ((offset - end) // 8)))
        fields.append((name, ctypes.c_void_p))
        end = offset + 8
    fields.append(("rest_of_program", ctypes.c_uint64 * ((size - end) // 8)))
    return type(f"{base.__name__}WithFunction", (base,), {"_fields_": fields})


def arguments_type(base: type[ctypes.Structure], problem: Problem) -> type[Any]:
    """Return the arguments of kernels for a problem, whose pass has those of `base`."""
    if problem.program is None:
        return base
    program, addresses = problem.program, []
    if problem.bias is not None:
        addresses.append(("bias", address_offset(program, problem.bias.slot)))
    if program.by_tiles is not None:
        addresses.append(("bias_gradient", sum_offset(program, program.by_tiles.slot)))
    return _with_function(base, arguments_size(program), *addresses)


def parameter(base: type[ctypes.Structure], program: Program | None, otherwise: str) -> str:
    """Return the kernel parameter that passes the arguments; `otherwise` without a program."""
    if program is None:
        return otherwise
    return f"const __grid_constant__ fa::attn::WithFunction<fa::{base.__name__}, {PROGRAM}> args"


def prelude(program: Program | None, *, bias: bool = False) -> str:
    """Return the C++ type of a program, or nothing if there is none. With `bias`, the kernel gives
    it the elements of a captured tensor."""
    return "" if program is None else cuda_text(program, PROGRAM, bias=bias)


def layout_asserts(base: type[ctypes.Structure], program: Program | None, otherwise: str) -> str:
    """Return what asserts that the compiler lays out the arguments as ctypes does."""
    if program is None:
        return otherwise
    size = ctypes.sizeof(_with_function(base, arguments_size(program)))
    own = f"sizeof(fa::attn::WithFunction<fa::{base.__name__}, {PROGRAM}>) == {size}"
    return f"{otherwise}\nstatic_assert({own});"


@cache
def changes_slopes(program: Program | None) -> bool:
    """Whether the derivative of scores by those before the function differs from 1."""
    if program is None or program.score is None:
        return False
    found = differentiate(program)
    slope = found.program.nodes[found.slope]
    return not (slope.op == "literal" and slope.detail == "1.0")


@cache
def keeps_derivatives(program: Program | None) -> bool:
    """Whether derivatives that depend on scores are kept until dS is there: of scores, or by
    elements of captured tensors."""
    if program is None or changes_slopes(program):
        return program is not None
    found, slots = differentiate(program), {slot for slot, _ in program.gathered}
    depends = found.program.depends
    return any(depends[load.value] & SCORE for load in found.loads if load.slot in slots)


def put_absolute(args: Any, problem: Problem) -> None:
    """Store whether a function counts queries from the first key of a KV cache on."""
    if problem.program is not None:
        args.absolute = int(problem.seqused_k or problem.page_keys > 0)


def put_function(args: Any, function: Function, pointers: Sequence[int] | None = None) -> None:
    """Store the numbers and the captured tensors of a function, and the sums of their gradients.
    Their addresses may be other ones than those of the tensors."""
    if pointers is None:
        pointers = [tensor.data_ptr() for tensor in function.memory]
    packed = arguments(function.traced, function.sums, pointers)
    ctypes.memmove(ctypes.addressof(args) + type(args).program.offset, packed, len(packed))
