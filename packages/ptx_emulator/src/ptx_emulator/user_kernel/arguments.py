# SPDX-License-Identifier: Apache-2.0
"""The arguments of a kernel: arrays that it reads and writes, numbers, structures, tensor maps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import UnsupportedError, shown
from ptx_emulator.machine.async_copies.tensor_map import TensorMap
from ptx_emulator.machine.machine import Argument, Structure
from ptx_emulator.machine.memory.textures import Texture
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.ptx.model import Param
from ptx_emulator.user_kernel.overlapping import Device, start_of
from ptx_emulator.user_kernel.values import (
    ADDRESS_BYTES,
    ALIGNED_SINCE_13,
    MAP_ALIGNMENT,
    MAP_BYTES,
    Empty,
    Pointer,
    Struct,
    Tensor,
    arrays_of,
    layout,
    number_bytes,
)

_RAW = (bytes, ctypes.Structure)
_ACCEPTED = (np.ndarray, Empty, Tensor, Texture, Struct, int, float, np.generic, *_RAW)
_POINTERS = (np.ndarray, Empty, Pointer)
_ARRAYS = (np.ndarray, Empty, Tensor)
_TEXTURES = 1 << 52  # the number of the first texture object: no address of memory
Given = (
    NDArray[Any]
    | Empty
    | Tensor
    | Texture
    | Struct
    | int
    | float
    | np.generic
    | bytes
    | ctypes.Structure
)


@dataclass(frozen=True)
class Placed:
    """An array in global memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    given: NDArray[Any] | None  # to be written back to
    name: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def place_arguments(
    params: Sequence[Param], given: Sequence[Given], names: Sequence[str], memory: GlobalMemory
) -> tuple[list[Argument], list[Placed]]:
    """Allocate the arrays; the kernel's arguments, and the arrays in their order."""
    arguments: list[Argument] = []
    arrays: list[Placed] = []
    named = zip(names, given, strict=True)
    on_host = [(name, _whole(array)) for name, value in named for array in arrays_of(value)]
    device = Device(memory, [(n, array) for n, array in on_host if isinstance(array, np.ndarray)])
    for param, value, name in zip(params, given, names, strict=True):
        if isinstance(value, _ARRAYS):
            placed = _place(value, name, device)
            arrays.append(placed)
            of_map = _tensor_map(value, placed) if isinstance(value, Tensor) else None
            arguments.append(of_map or placed.address)
        elif isinstance(value, Texture):
            arguments.append(_place_texture(value, device))
        elif isinstance(value, Pointer):
            arguments.append(_place_pointer(value, name, device, arrays))
        elif isinstance(value, Struct):
            arguments.append(_place_struct(value, name, device, arrays, _of_maps(param)))
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
            whole = ", and a structure is passed from Python, as a Struct" if param.size > 8 else ""
            raise UnsupportedError(
                f"{name} is an array, and the parameter has {param.size} bytes; a pointer has 8"
                f"{whole}"
            )
        if isinstance(value, Texture) and param.size != ADDRESS_BYTES:
            raise UnsupportedError(
                f"{name} is a Texture, and the parameter has {param.size} bytes; a texture object"
                f" has {ADDRESS_BYTES}"
            )
        if isinstance(value, Tensor) and param.size != MAP_BYTES:
            raise UnsupportedError(
                f"{name} is a Tensor, and the parameter has {param.size} bytes; a CUtensorMap has"
                f" {MAP_BYTES}"
            )
        if isinstance(value, Struct) and not isinstance(value, Pointer):
            _check_struct(param, value, name)
        for array in arrays_of(value):
            _check_array(_whole(array), name)
            if isinstance(array, Tensor) and isinstance(array.array, np.ndarray):
                _check_rows(array.array, name)
        if not isinstance(value, _ACCEPTED):
            raise UnsupportedError(
                f"{name} is {shown(value)}; pass an array, Empty, a Tensor, a Texture, a Struct,"
                " a Pointer, a number or bytes"
            )


def _check_array(array: NDArray[Any] | Empty, name: str) -> None:
    if np.dtype(array.dtype).kind not in "biufcV":
        raise UnsupportedError(f"{name} has elements of {array.dtype}; pass numbers")
    if isinstance(array, Empty):
        shape = (array.shape,) if isinstance(array.shape, int) else array.shape
        if min(shape, default=1) < 0:
            raise UnsupportedError(f"{name} has the shape {array.shape}; no size is negative")
    elif not array.flags.c_contiguous:
        raise UnsupportedError(f"{name} is not contiguous; pass np.ascontiguousarray of it")


def _check_rows(array: NDArray[Any], name: str) -> None:
    if array.ndim and array.strides[-1] != array.itemsize:
        raise UnsupportedError(f"the last axis of {name} is not contiguous; TMA moves it whole")


def _check_struct(param: Param, value: Struct, name: str) -> None:
    _, size = layout(value, _of_maps(param))
    if size != param.size:
        raise UnsupportedError(
            f"{name} is a structure of {size} bytes, and the parameter has {param.size}; pass all"
            " fields, with numbers of NumPy where they have not four bytes"
        )


def _of_maps(param: Param) -> int:
    """The alignment of the tensor maps in a parameter: all that is aligned like this are maps."""
    return ALIGNED_SINCE_13 if param.align >= ALIGNED_SINCE_13 else MAP_ALIGNMENT


def _place_struct(
    value: Struct, name: str, device: Device, arrays: list[Placed], of_maps: int = MAP_ALIGNMENT
) -> Structure:
    """The bytes of a structure, and the tensor maps in it by their offsets."""
    fields, size = layout(value, of_maps)
    data, maps = bytearray(size), dict[int, TensorMap]()
    for number, (offset, field) in enumerate(fields):
        called = f"{name}.{number}"
        if isinstance(field, _ARRAYS):
            placed = _place(field, called, device)
            arrays.append(placed)
            if isinstance(field, Tensor):
                maps[offset] = _tensor_map(field, placed)
                continue
            packed = placed.address.to_bytes(8, "little")
        elif isinstance(field, Texture):
            packed = _place_texture(field, device).to_bytes(8, "little")
        elif isinstance(field, Pointer):
            packed = _place_pointer(field, called, device, arrays).to_bytes(8, "little")
        else:
            packed = field if isinstance(field, bytes) else number_bytes(field)
        data[offset : offset + len(packed)] = packed
    return Structure(bytes(data), maps)


def _place_pointer(value: Pointer, name: str, device: Device, arrays: list[Placed]) -> int:
    """Allocate a structure; its address."""
    struct = _place_struct(value, name, device, arrays)
    address = device.memory.alloc(np.frombuffer(struct.data, np.uint8), name=name)
    device.memory.tensor_maps |= {address + offset: found for offset, found in struct.maps.items()}
    return address


def _place_texture(value: Texture, device: Device) -> int:
    """The number of the texture object."""
    number = _TEXTURES + len(device.memory.textures)
    device.memory.textures[number] = value
    return number


def _whole(value: NDArray[Any] | Empty | Tensor) -> NDArray[Any] | Empty:
    """An array; of a Tensor that is no contiguous one, the array that it is a view of."""
    if not isinstance(value, Tensor):
        return value
    array = value.array
    if isinstance(array, Empty) or array.flags.c_contiguous:
        return array
    return array.base if isinstance(array.base, np.ndarray) else array


def _place(value: NDArray[Any] | Empty | Tensor, name: str, device: Device) -> Placed:
    value = _whole(value)
    if isinstance(value, Empty):
        shape = (value.shape,) if isinstance(value.shape, int) else tuple(value.shape)
        dtype = np.dtype(value.dtype)
        nbytes = prod(shape) * dtype.itemsize
        return Placed(device.memory.alloc(nbytes=nbytes, name=name), shape, dtype, None, name)
    return Placed(device.address(value, name), value.shape, value.dtype, value, name)


def _tensor_map(value: Tensor, placed: Placed) -> TensorMap:
    view, first = value.array, 0
    dtype, shape, strides = placed.dtype, placed.shape, _strides(placed)
    if placed.given is not None and isinstance(view, np.ndarray) and view is not placed.given:
        dtype, shape, strides = view.dtype, view.shape, view.strides
        first = start_of(view) - start_of(placed.given)
    return TensorMap(
        address=placed.address + first,
        dims=shape[::-1],
        strides=strides[-2::-1],
        box=value.box[::-1],
        element_bytes=dtype.itemsize,
        swizzle=value.swizzle,
        dtype=dtype.name,
    )


def _strides(placed: Placed) -> tuple[int, ...]:
    """Those of an array whose elements lie one after the other."""
    size, shape = placed.dtype.itemsize, placed.shape
    return tuple(size * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _number(param: Param, value: Any, name: str) -> Argument:
    """A number as wide as its parameter; PTX does not tell floats from integers everywhere."""
    if isinstance(value, np.float64):  # a float of Python, too: 1 / np.sqrt(n)
        value = float(value)
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
