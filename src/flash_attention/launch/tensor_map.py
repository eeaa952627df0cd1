# SPDX-License-Identifier: Apache-2.0
"""Tensor maps, encoded by the driver."""

from __future__ import annotations

import ctypes
import struct
from ctypes import addressof
from functools import cache
from typing import Any

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

EncodedMap = ctypes.Array[ctypes.c_ubyte]
Dims = tuple[int, ...]

_Map = ctypes.c_ubyte * MAP_BYTES
_Room = ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT)
PARAMETERS = (
    *(ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p),
    *(ctypes.c_char_p,) * 4,  # arrays of integers
    *(ctypes.c_int,) * 4,
)
"""The types of the parameters of cuTensorMapEncodeTiled."""

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


class EncodedMaps(dict[tuple[int, Dims], EncodedMap]):
    """The encoded maps of one description by the tensor's address and the sizes that it has there,
    each made at first use."""

    def __init__(self, description: MapDescription, device_index: int) -> None:
        super().__init__()
        self._how = MapParameters(description)
        self._device_index = device_index

    def __missing__(self, key: tuple[int, Dims]) -> EncodedMap:
        if len(self) >= MAX_ENCODED:
            self.pop(next(iter(self)), None)  # the oldest one
        self[key] = made = encode(self._how, *key, self._device_index)
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
    encoded = _Map.from_buffer(room, -addressof(room) % MAP_ALIGNMENT)
    parameters = (addressof(encoded), *how.first, address, how.pack_dims(*dims), *how.last)
    status = _encode_function()(*parameters)
    if status == driver.NO_CONTEXT:  # a thread that has not used CUDA yet
        driver.bind_primary_context(device_index)
        status = _encode_function()(*parameters)
    if status:
        raise driver.error("cuTensorMapEncodeTiled", CUresult(status))
    return encoded


@cache
def _encode_function() -> Any:
    """Return the driver's function. cuda.bindings does not align its result to 64 bytes."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        function.argtypes = PARAMETERS
        return function
    except (OSError, AttributeError) as missing:
        raise driver.not_callable("cuTensorMapEncodeTiled", missing) from missing
