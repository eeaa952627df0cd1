# SPDX-License-Identifier: Apache-2.0
"""Tensor maps, encoded by the driver."""

from __future__ import annotations

import ctypes
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
MAX_ENCODED = 4096  # per description; beyond that all are dropped

EncodedMap = ctypes.Array[ctypes.c_ubyte]

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


class EncodedMaps(dict[int, EncodedMap]):
    """The encoded maps of one description by the tensor's address, each made at first use."""

    def __init__(self, description: MapDescription, device_index: int) -> None:
        super().__init__()
        self._description = description
        self._device_index = device_index

    def __missing__(self, address: int) -> EncodedMap:
        if len(self) >= MAX_ENCODED:
            self.clear()
        self[address] = made = encode(self._description, address, self._device_index)
        return made


def encode(description: MapDescription, address: int, device_index: int) -> EncodedMap:
    """Encode a description as the driver's opaque CUtensorMap."""
    rank = len(description.dims)
    room = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
    start = -ctypes.addressof(room) % MAP_ALIGNMENT
    encoded = (ctypes.c_ubyte * MAP_BYTES).from_buffer(room, start)
    parameters = (
        ctypes.byref(encoded),
        ctypes.c_int(ELEMENTS[description.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*description.dims),
        (ctypes.c_uint64 * max(1, rank - 1))(*description.strides),
        (ctypes.c_uint32 * rank)(*description.box),
        (ctypes.c_uint32 * rank)(*(description.steps or [1] * rank)),
        ctypes.c_int(NO_INTERLEAVE),
        ctypes.c_int(SWIZZLES[description.swizzle]),
        ctypes.c_int(PROMOTIONS[description.promotion]),
        ctypes.c_int(ZEROS_OUTSIDE),
    )
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
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as missing:
        raise driver.not_callable("cuTensorMapEncodeTiled", missing) from missing
