# SPDX-License-Identifier: Apache-2.0
"""What kernels are given besides arrays and numbers: memory, tensor maps, structures, pointers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptx_emulator.errors import UnsupportedError, shown
from ptx_emulator.machine.memory.textures import Texture

MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
ALIGNED_SINCE_13 = 128  # in headers of CUDA 13 and later
ADDRESS_BYTES = 8


@dataclass(frozen=True)
class Empty:
    """An array that nothing was written to, as cudaMalloc gives it: to read it is a mistake."""

    shape: int | tuple[int, ...]
    dtype: DTypeLike = np.float32


@dataclass(frozen=True)
class Tensor:
    """An array that TMA moves in boxes of `box` elements, the last axis innermost.

    It may be a view, such as one with its axes in another order; the kernel gets what it is of.
    """

    array: NDArray[Any] | Empty
    box: tuple[int, ...]
    swizzle: int = 0  # bytes of the pattern: 0, 32, 64 or 128


class Struct:
    """A structure: its fields one after the other, as C lays them out.

    A field is an array or Empty, which stands for a pointer to it; a Tensor, which stands for a
    CUtensorMap; a Texture, which stands for a texture object; a Struct or a Pointer; a number, of
    which int and float have four bytes and those of NumPy their own size; or bytes.
    """

    def __init__(self, *fields: Any) -> None:
        self.fields = fields

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(shown, self.fields))})"


class Pointer(Struct):
    """The address of a structure, or of a Tensor's CUtensorMap, in global memory."""


class Placed(NamedTuple):
    """A field and where it lies in its structure."""

    offset: int
    value: Any


def layout(struct: Struct, of_maps: int = MAP_ALIGNMENT) -> tuple[list[Placed], int]:
    """The fields with their offsets, those of structures within it too, and the size of all.

    `of_maps` is the alignment of a CUtensorMap.
    """
    end, fields = 0, list[Placed]()
    for value in struct.fields:
        size, alignment = _extent(value, of_maps)
        start = -(-end // alignment) * alignment
        if isinstance(value, Struct) and not isinstance(value, Pointer):
            inner = layout(value, of_maps)[0]
            fields += [Placed(start + offset, field) for offset, field in inner]
        else:
            fields.append(Placed(start, value))
        end = start + size
    alignment = max((_extent(value, of_maps)[1] for value in struct.fields), default=1)
    return fields, -(-end // alignment) * alignment


def _extent(value: Any, of_maps: int) -> tuple[int, int]:
    """The size and the alignment of a field."""
    if isinstance(value, Pointer | np.ndarray | Empty | Texture):
        return ADDRESS_BYTES, ADDRESS_BYTES
    if isinstance(value, Struct):
        alignment = max((_extent(field, of_maps)[1] for field in value.fields), default=1)
        return layout(value, of_maps)[1], alignment
    if isinstance(value, Tensor):
        return MAP_BYTES, of_maps
    if isinstance(value, bytes):
        return len(value), 1
    size = len(number_bytes(value))
    return size, size


def number_bytes(value: Any) -> bytes:
    """A number of a structure; UnsupportedError where the value is none."""
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, float):
        return np.float32(value).tobytes()
    if isinstance(value, int):
        return (value % (1 << 32)).to_bytes(4, "little")
    raise UnsupportedError(
        f"a field of a structure is {shown(value)}; pass an array, Empty, a Tensor, a Struct, a"
        " Pointer, a number or bytes"
    )


def arrays_of(value: Any) -> Iterator[NDArray[Any] | Empty | Tensor]:
    """The arrays among an argument and its fields."""
    if isinstance(value, Struct):
        for field in value.fields:
            yield from arrays_of(field)
    elif isinstance(value, np.ndarray | Empty | Tensor):
        yield value
