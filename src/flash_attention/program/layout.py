# SPDX-License-Identifier: Apache-2.0
"""How tensors and numbers of a call lie in memory for a kernel: `struct Args`, and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from flash_attention.errors import UnsupportedError
from flash_attention.program.nodes import INT, Program
from flash_attention.program.trace import Traced

ALIGNMENT = 8  # of the struct, in bytes

ELEMENTS = {
    torch.bool: "unsigned char",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long long",
    torch.float16: "unsigned short",
    torch.bfloat16: "unsigned short",
    torch.float32: "float",
    torch.float64: "double",
}
"""The types of elements in device code."""


def struct_text(program: Program) -> str:
    """`struct Args`. What has 8 bytes comes first, so that no room is left between fields."""
    wide, narrow = [], []
    for slot, (dtype, ndim) in enumerate(program.tensors):
        wide.append(f"const {ELEMENTS[dtype]}* tensor{slot};")
        if ndim:
            wide.append(f"long long stride{slot}[{ndim}];")
            narrow.append(f"int size{slot}[{ndim}];")
    narrow += [f"{type_} number{slot};" for slot, type_ in enumerate(program.numbers)]
    fields = [*wide, *narrow] or ["long long none;"]
    return f"struct alignas({ALIGNMENT}) Args {{ {' '.join(fields)} }};"


def arguments_size(program: Program) -> int:
    """The bytes of `struct Args`."""
    return struct.calcsize(_format(program))


def arguments(traced: Traced, pointers: Sequence[int] | None = None) -> bytes:
    """The bytes of `struct Args`. `pointers` are the addresses of the captured tensors where these
    are not their own."""
    program, tensors, numbers = traced
    addresses = [tensor.data_ptr() for tensor in tensors] if pointers is None else pointers
    wide: list[int] = []
    narrow: list[int | float] = []
    for slot, (tensor, address) in enumerate(zip(tensors, addresses, strict=True)):
        if any(size >= 2**31 for size in tensor.shape):
            raise UnsupportedError(
                f"captured tensor {slot} has shape {tuple(tensor.shape)}; a dimension can have"
                " 2^31 - 1 elements"
            )
        wide += [address, *tensor.stride()]
        narrow += tensor.shape
    return struct.pack(_format(program), *wide, *narrow, *numbers)


def _format(program: Program) -> str:
    dimensions = sum(ndim for _, ndim in program.tensors)
    numbers = "".join("i" if type_ == INT else "f" for type_ in program.numbers)
    wide = "".join("Q" + ndim * "q" for _, ndim in program.tensors)
    format_ = f"={wide}{dimensions}i{numbers}"
    size = struct.calcsize(format_)
    return f"{format_}{-size % ALIGNMENT if size else ALIGNMENT}x"
