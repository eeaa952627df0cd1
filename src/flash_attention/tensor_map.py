# SPDX-License-Identifier: Apache-2.0
"""Tensor maps: what TMA is told of a tensor and of the box it moves.

One description serves both: the driver encodes it for the GPU, the emulator takes it as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
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

from flash_attention import driver
from flash_attention.checks import DIMS, TensorView
from flash_attention.emulator import TensorMap
from flash_attention.errors import UnsupportedError
from flash_attention.features import PLAIN, Features
from flash_attention.kernel_configs import HopperForwardKernelConfig

MAP_BYTES, MAP_ALIGNMENT = 128, 64
MAX_STRIDE_BYTES = 1 << 40  # TMA's own limit; strides are below it
MAX_ENCODED = 4096  # addresses of one tensor; a program with ever new ones starts over

EncodedMap = ctypes.Array[ctypes.c_ubyte]

ELEMENTS = {
    torch.float16: CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    torch.bfloat16: CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}
SWIZZLES = {
    0: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
NO_INTERLEAVE = CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
ZEROS_OUTSIDE = CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE


@dataclass(frozen=True)
class MapDescription:
    """A tensor of 16-bit elements, wherever it lies, and its box; innermost dimension first.

    `strides` are the bytes of all dimensions but the innermost, which is dense. A row of a
    swizzled box is as wide as the swizzle.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int  # bytes
    element: CUtensorMapDataType
    promotion: CUtensorMapL2promotion  # how much of the L2 a load brings in at a time

    def emulated(self, address: int) -> TensorMap:
        """The emulator's tensor map of the tensor at `address`."""
        return TensorMap(address, self.dims, self.strides, self.box, swizzle=self.swizzle)


def describe(
    view: TensorView, box: tuple[int, int, int], promotion: CUtensorMapL2promotion
) -> MapDescription:
    """A (batch, seq, heads, d) tensor, moved in boxes of so many columns, heads and rows; where a
    box reaches beyond the tensor, zeros are loaded and nothing is stored."""
    batch, seq, heads, d_head = view.shape
    size = view.dtype.itemsize
    strides = []
    for dim in (2, 1, 0):
        # Of a dimension of one entry torch may report any stride, and TMA uses none.
        stride = size * (view.strides[dim] if view.shape[dim] > 1 else d_head)
        if stride >= MAX_STRIDE_BYTES:
            raise UnsupportedError(
                f"the {DIMS[dim]} stride of {view.name} is {stride} bytes; TMA takes less than"
                f" {MAX_STRIDE_BYTES}: copy it with {view.name}.contiguous(), or pass a config"
                " with tma=False"
            )
        strides.append(stride)
    return MapDescription(
        dims=(d_head, heads, seq, batch),
        strides=tuple(strides),
        box=(*box, 1),
        swizzle=box[0] * size,
        element=ELEMENTS[view.dtype],
        promotion=promotion,
    )


def describe_all(
    config: HopperForwardKernelConfig, views: Sequence[TensorView], features: Features = PLAIN
) -> tuple[MapDescription, ...]:
    """Of q, k, v and o: a warpgroup's rows of q, a block of keys of k and v, a warp's rows of o.

    A box is one panel of the kernel's shared tiles wide: 64 columns, or 32 where 64 do not divide
    the config's d_head. Rows of q may be of several heads; no box of keys is larger than a page.
    """
    panel = config.panel_columns
    keys = (panel, 1, features.box_keys(config.B_c))
    boxes = ((panel, *features.q_box), keys, keys, (panel, *features.o_box))
    as_asked = CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE
    wider = CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
    once = as_asked if features.short_queries else wider  # 2 to 5 % in decoding at 4.3 TB/s
    promotions = (wider, once, once, as_asked)
    return tuple(map(describe, views, boxes, promotions))


class EncodedMaps:
    """The encoded maps of one description, made once an address."""

    def __init__(self, description: MapDescription) -> None:
        self.description = description
        self._made: dict[int, EncodedMap] = {}

    def at(self, address: int) -> EncodedMap:
        """The map of the tensor at `address`."""
        made = self._made.get(address)
        if made is None:
            made = encode(self.description, address)
            if len(self._made) >= MAX_ENCODED:
                self._made.clear()
            self._made[address] = made
        return made


def encode(description: MapDescription, address: int) -> EncodedMap:
    """The driver's opaque CUtensorMap of a description."""
    rank = len(description.dims)
    room = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
    start = -ctypes.addressof(room) % MAP_ALIGNMENT
    encoded = (ctypes.c_ubyte * MAP_BYTES).from_buffer(room, start)
    status = _encode_function()(
        ctypes.byref(encoded),
        ctypes.c_int(description.element),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*description.dims),
        (ctypes.c_uint64 * max(1, rank - 1))(*description.strides),
        (ctypes.c_uint32 * rank)(*description.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(NO_INTERLEAVE),
        ctypes.c_int(SWIZZLES[description.swizzle]),
        ctypes.c_int(description.promotion),
        ctypes.c_int(ZEROS_OUTSIDE),
    )
    if status:
        raise driver.error("cuTensorMapEncodeTiled", CUresult(status))
    return encoded


@cache
def _encode_function() -> Any:
    """The function itself, as cuda.bindings has no result that is sure to lie on 64 bytes."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as missing:
        raise driver.not_callable("cuTensorMapEncodeTiled", missing) from missing
