# SPDX-License-Identifier: Apache-2.0
"""Tensor maps, encoded by the driver."""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict
from ctypes import addressof
from functools import cache
from typing import Any, NamedTuple

import torch
from cuda.bindings.driver import (
    CUresult,
    CUtensorMapDataType,
    CUtensorMapFloatOOBfill,
    CUtensorMapInterleave,
    CUtensorMapL2promotion,
    CUtensorMapSwizzle,
)

from flash_attention.families.recipe import MapDescription
from flash_attention.launch import driver

MAP_BYTES, MAP_ALIGNMENT = 128, 64
MAX_ENCODED = 4096  # per description; beyond that the oldest is dropped

Dims = tuple[int, ...]

_Room = ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT)


class EncodedMap(NamedTuple):
    """A tensor map of the driver."""

    at: int  # its address
    room: ctypes.Array[ctypes.c_ubyte]  # the memory that it lies in


PARAMETERS = (ctypes.c_void_p,) * 12
"""The types of the parameters of cuTensorMapEncodeTiled. Integers are as wide as addresses where
they are passed, and ctypes converts addresses the fastest."""

ELEMENTS = {
    torch.float16: CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    torch.bfloat16: CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    torch.float8_e4m3fn: CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
}
SWIZZLES = {
    0: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
PROMOTIONS = {
    0: CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    128: CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    256: CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}
NO_INTERLEAVE = CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
ZEROS_OUTSIDE = CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE


class EncodedMaps(OrderedDict[tuple[int, int], EncodedMap]):
    """The encoded maps of one description by the tensor's address and the size that it has there in
    dimension `sized`, each made at first use."""

    def __init__(self, description: MapDescription, device_index: int, sized: int) -> None:
        super().__init__()
        self._how = MapParameters(description)
        self._device_index = device_index
        self.size = description.dims[sized]
        """The size of the description."""
        self._before, self._after = description.dims[:sized], description.dims[sized + 1 :]

    def __missing__(self, key: tuple[int, int]) -> EncodedMap:
        if len(self) >= MAX_ENCODED:
            self.popitem(last=False)
        address, size = key
        dims = (*self._before, size, *self._after)
        self[key] = made = encode(self._how, address, dims, self._device_index)
        return made


class MapParameters:
    """The parameters of the driver's function for a description, besides the tensor's address and
    sizes. Threads share them, since they are only read."""

    def __init__(self, description: MapDescription) -> None:
        rank = len(description.dims)
        self.description = description
        self.pack_dims = struct.Struct(f"<{rank}Q").pack
        self.first = int(ELEMENTS[description.dtype]), rank
        self.last = (
            struct.pack(f"<{len(description.strides)}Q", *description.strides),
            struct.pack(f"<{rank}I", *description.box),
            struct.pack(f"<{rank}I", *(description.steps or [1] * rank)),
            int(NO_INTERLEAVE),
            int(SWIZZLES[description.swizzle]),
            int(PROMOTIONS[description.promotion]),
            int(ZEROS_OUTSIDE),
        )


def encode(how: MapParameters, address: int, dims: Dims, device_index: int) -> EncodedMap:
    """Encode a description, of a tensor with these sizes, as the driver's opaque CUtensorMap."""
    room = _Room()
    at = -(-addressof(room) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    parameters = (at, *how.first, address, how.pack_dims(*dims), *how.last)
    status = _encode_function()(*parameters)
    if status == driver.NO_CONTEXT:  # a thread that has not used CUDA yet
        driver.bind_primary_context(device_index)
        status = _encode_function()(*parameters)
    if status:
        raise driver.error("cuTensorMapEncodeTiled", CUresult(status))
    return EncodedMap(at, room)


@cache
def _encode_function() -> Any:
    """Return the driver's function. cuda.bindings does not align its result to 64 bytes."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        function.argtypes = PARAMETERS
        return function
    except (OSError, AttributeError) as missing:
        raise driver.not_callable("cuTensorMapEncodeTiled", missing) from missing
