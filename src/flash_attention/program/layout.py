# SPDX-License-Identifier: Apache-2.0
"""How tensors and numbers of a call lie in memory for a kernel: `struct Args`, and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.program.nodes import INT, How, Program
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

DIGITS = 5  # kDigits of include/fa/attn/function.cuh
LOWEST_DIGIT = 2.0**-96  # the weight of the first digit
DIGIT = 2.0**32  # of one digit in terms of the digit before


class Sum(NamedTuple):
    """The gradient of a captured tensor while kernels add to it."""

    values: Tensor  # in the shape of the tensor, or with more keys
    digits: Tensor | None = None  # int64 (elements, DIGITS), if the sums are exact
    keys: int | None = None  # of the tensor, if there are more here

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """What a kernel writes."""
        return (self.values,) if self.digits is None else (self.values, self.digits)

    def total(self) -> Tensor:
        """The gradient. Values have what no digits express: infinities and NaN."""
        if self.digits is None:
            return self.values if self.keys is None else self.values[..., : self.keys]
        found = torch.zeros(len(self.digits), dtype=torch.float64, device=self.digits.device)
        for place in reversed(range(DIGITS)):
            found += self.digits[:, place].double() * (LOWEST_DIGIT * DIGIT**place)
        return found.view(self.values.shape) + self.values


def struct_text(program: Program) -> str:
    """`struct Args`. What has 8 bytes comes first, so that no room is left between fields."""
    wide, narrow = [], []
    for slot, (dtype, ndim) in enumerate(program.tensors):
        wide.append(f"const {ELEMENTS[dtype]}* tensor{slot};")
        if ndim:
            wide.append(f"long long stride{slot}[{ndim}];")
            narrow.append(f"int size{slot}[{ndim}];")
    for slot, how in program.gathered:
        dtype, ndim = program.tensors[slot]
        wide.append(f"{'float' if how.in_float32 else ELEMENTS[dtype]}* sum{slot};")
        if how is How.EXACT:
            wide.append(f"long long* digits{slot};")
        if ndim:
            wide.append(f"long long sum_stride{slot}[{ndim}];")
    narrow += [f"{type_} number{slot};" for slot, type_ in enumerate(program.numbers)]
    fields = [*wide, *narrow] or ["long long none;"]
    return f"struct alignas({ALIGNMENT}) Args {{ {' '.join(fields)} }};"


def gradient_text(program: Program, slot: int) -> str:
    """The gradient of a captured tensor, as `Gradient` of include/fa/attn/function.cuh."""
    ndim = program.tensors[slot].ndim
    sizes, strides = (
        [f"args.{word}{slot}[{d}]" if d >= 0 else absent for d in range(ndim - 4, ndim)]
        for word, absent in (("size", "1"), ("sum_stride", "0"))
    )
    return f"{{{', '.join([f'args.sum{slot}', *sizes, *strides[:-1]])}}}"


def arguments_size(program: Program) -> int:
    """The bytes of `struct Args`."""
    return struct.calcsize(_format(program))


def address_offset(program: Program, slot: int) -> int:
    """Where the address of a captured tensor is in `struct Args`, in bytes."""
    return sum(8 * (1 + ndim) for _, ndim in program.tensors[:slot])


def sum_offset(program: Program, slot: int) -> int:
    """Where the address of the gradient of a captured tensor is in `struct Args`, in bytes."""
    offset = address_offset(program, len(program.tensors))
    for each, how in program.gathered:
        if each == slot:
            return offset
        offset += 8 * (1 + (how is How.EXACT) + program.tensors[each].ndim)
    raise KeyError(slot)


def arguments(traced: Traced, sums: Sequence[Sum], pointers: Sequence[int]) -> bytes:
    """The bytes of `struct Args`. `pointers` are the addresses of the captured tensors, then those
    of the memory of their sums."""
    program, tensors, numbers = traced
    addresses = iter(pointers)
    wide: list[int] = []
    narrow: list[int | float] = []
    for slot, (tensor, address) in enumerate(zip(tensors, addresses, strict=False)):
        if any(size >= 2**31 for size in tensor.shape):
            raise UnsupportedError(
                f"captured tensor {slot} has shape {tuple(tensor.shape)}; a dimension can have"
                " 2^31 - 1 elements"
            )
        wide += [address, *tensor.stride()]
        narrow += tensor.shape
    for each in sums:
        wide += [next(addresses) for _ in each.memory]
        wide += each.values.stride()
    return struct.pack(_format(program), *wide, *narrow, *numbers)


def _format(program: Program) -> str:
    dimensions = sum(ndim for _, ndim in program.tensors)
    numbers = "".join("i" if type_ == INT else "f" for type_ in program.numbers)
    wide = "".join("Q" + ndim * "q" for _, ndim in program.tensors)
    for slot, how in program.gathered:
        wide += ("QQ" if how is How.EXACT else "Q") + program.tensors[slot].ndim * "q"
    format_ = f"={wide}{dimensions}i{numbers}"
    size = struct.calcsize(format_)
    return f"{format_}{-size % ALIGNMENT if size else ALIGNMENT}x"
