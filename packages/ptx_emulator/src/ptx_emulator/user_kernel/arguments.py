# SPDX-License-Identifier: Apache-2.0
"""The arguments of a kernel: arrays that it reads and writes, numbers, structures, tensor maps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptx_emulator.errors import UnsupportedError, shown
from ptx_emulator.machine.async_copies.tensor_map import TensorMap
from ptx_emulator.machine.machine import Argument
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.ptx.model import Param


@dataclass(frozen=True)
class Empty:
    """An array that nothing was written to, as cudaMalloc gives it: to read it is a mistake."""

    shape: int | tuple[int, ...]
    dtype: DTypeLike = np.float32


@dataclass(frozen=True)
class Tensor:
    """An array that TMA moves in boxes of `box` elements, the last axis innermost."""

    array: NDArray[Any]
    box: tuple[int, ...]
    swizzle: int = 0  # bytes of the pattern: 0, 32, 64 or 128


TENSOR_MAP_BYTES = 128
_ACCEPTED = (np.ndarray, Empty, Tensor, int, float, np.generic, bytes, ctypes.Structure)
_POINTERS, _RAW = (np.ndarray, Empty), (bytes, ctypes.Structure)
_ARRAYS = (*_POINTERS, Tensor)
Given = NDArray[Any] | Empty | Tensor | int | float | np.generic | bytes | ctypes.Structure


@dataclass(frozen=True)
class Placed:
    """An array in global memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    given: NDArray[Any] | None  # to be written back to

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def place_arguments(
    params: Sequence[Param], given: Sequence[Given], names: Sequence[str], memory: GlobalMemory
) -> tuple[list[Argument], list[Placed]]:
    """Allocate the arrays, those that overlap as one; the kernel's arguments, and the arrays in
    their order."""
    arguments: list[Argument] = []
    arrays: list[Placed] = []
    starts = _place_overlapping(given, names, memory)
    for param, value, name in zip(params, given, names, strict=True):
        if isinstance(value, _ARRAYS):
            placed = _place(value, name, memory, starts)
            arrays.append(placed)
            tensor = isinstance(value, Tensor)
            arguments.append(_tensor_map(value, placed) if tensor else placed.address)
        elif isinstance(value, _RAW):
            arguments.append(value)
        else:
            arguments.append(_number(param, value, name))
    return arguments, arrays


def check_arguments(params: Sequence[Param], given: Sequence[Given], names: Sequence[str]) -> None:
    """Refuse what does not fit the kernel's parameters, before anything is allocated."""
    if len(given) != len(params):
        types = ", ".join(f".{param.type}" for param in params)
        raise UnsupportedError(
            f"{len(given)} arguments for {len(params)} parameters; the kernel takes ({types})"
        )
    for param, value, name in zip(params, given, names, strict=True):
        if isinstance(value, _POINTERS) and param.size != 8:
            raise UnsupportedError(
                f"{name} is an array, and the parameter has {param.size} bytes; a pointer has 8"
            )
        if isinstance(value, Tensor) and param.size != TENSOR_MAP_BYTES:
            raise UnsupportedError(
                f"{name} is a Tensor, and the parameter has {param.size} bytes; a CUtensorMap has"
                f" {TENSOR_MAP_BYTES}"
            )
        if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
            raise UnsupportedError(f"{name} is not contiguous; pass np.ascontiguousarray of it")
        if not isinstance(value, _ACCEPTED):
            raise UnsupportedError(
                f"{name} is {shown(value)}; pass an array, Empty, a number, bytes or a structure"
            )


def _place_overlapping(
    given: Sequence[Given], names: Sequence[str], memory: GlobalMemory
) -> dict[int, int]:
    """Allocate arrays that share bytes, such as one that is passed twice; where each of them is,
    by where the host has it."""
    arrays = [value.array if isinstance(value, Tensor) else value for value in given]
    found = sorted(
        (array.ctypes.data, array.ctypes.data + array.nbytes, place)
        for place, array in enumerate(arrays)
        if isinstance(array, np.ndarray) and array.nbytes
    )
    together: list[list[tuple[int, int, int]]] = []
    end = 0
    for start, stop, place in found:
        if start < end:
            together[-1].append((start, stop, place))
        else:
            together.append([(start, stop, place)])
        end = max(end, stop)
    addresses: dict[int, int] = {}
    for several in together:
        if len(several) > 1:
            first = several[0][0]
            whole = np.zeros(max(stop for _, stop, _ in several) - first, np.uint8)
            for start, stop, place in several:
                array = arrays[place]
                assert isinstance(array, np.ndarray)
                whole[start - first : stop - first] = array.reshape(-1).view(np.uint8)
            name = " = ".join(names[place] for _, _, place in several)
            address = memory.alloc(whole, name=name)
            addresses |= {start: address + start - first for start, _, _ in several}
    return addresses


def _place(
    value: NDArray[Any] | Empty | Tensor, name: str, memory: GlobalMemory, starts: dict[int, int]
) -> Placed:
    """The place of an array: one of `starts`, or memory of its own."""
    if isinstance(value, Empty):
        shape = (value.shape,) if isinstance(value.shape, int) else tuple(value.shape)
        dtype = np.dtype(value.dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        return Placed(memory.alloc(nbytes=nbytes, name=name), shape, dtype, None)
    array = value.array if isinstance(value, Tensor) else value
    address = starts.get(array.ctypes.data)
    if address is None:
        address = memory.alloc(array, name=name)
    return Placed(address, array.shape, array.dtype, array)


def _tensor_map(value: Any, placed: Placed) -> TensorMap:
    size = placed.dtype.itemsize
    strides = tuple(
        size * int(np.prod(placed.shape[axis:])) for axis in range(1, len(placed.shape))
    )
    return TensorMap(
        address=placed.address,
        dims=placed.shape[::-1],
        strides=strides[::-1],
        box=value.box[::-1],
        element_bytes=size,
        swizzle=value.swizzle,
    )


def _number(param: Param, value: Any, name: str) -> Argument:
    """A number as wide as its parameter; PTX does not tell floats from integers everywhere."""
    if isinstance(value, float) and param.type[0] != "f":
        value = np.float32(value) if param.size == 4 else np.float64(value)
    if isinstance(value, np.generic):
        if value.nbytes != param.size:
            raise UnsupportedError(
                f"{name} has {value.nbytes} bytes, and its parameter {param.size}"
            )
        return value.tobytes()
    if isinstance(value, int) and param.type[0] != "f":
        return (value % (1 << 8 * param.size)).to_bytes(param.size, "little")
    return float(value)
