# SPDX-License-Identifier: Apache-2.0
"""A conformance case for sm_90a on the GPU, with tensor maps made by the driver."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch
from cuda.bindings import driver as cuda

from flash_attention import driver
from tests.emulator.conformance.case import Array
from tests.emulator.conformance.hopper_case import HopperCase, MapOf, compiled_source

MAP_BYTES, MAP_ALIGNMENT = 128, 64
TYPE_UINT16, NO_INTERLEAVE, NO_PROMOTION, FILL_ZEROS = 1, 0, 0, 0
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@cache
def _libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def encode(described: MapOf, address: int) -> ctypes.Array[ctypes.c_ubyte]:
    """The opaque CUtensorMap of a description."""
    rank = len(described.dims)
    raw = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
    offset = -ctypes.addressof(raw) % MAP_ALIGNMENT
    encoded = (ctypes.c_ubyte * MAP_BYTES).from_buffer(raw, offset)
    status = _libcuda().cuTensorMapEncodeTiled(
        ctypes.byref(encoded),
        TYPE_UINT16,
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*described.dims),
        (ctypes.c_uint64 * max(1, rank - 1))(*described.strides),
        (ctypes.c_uint32 * rank)(*described.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        NO_INTERLEAVE,
        SWIZZLES[described.swizzle],
        NO_PROMOTION,
        FILL_ZEROS,
    )
    if status:
        raise ValueError(f"cuTensorMapEncodeTiled refused {described}: error {status}")
    return encoded


def launched_hopper(case: HopperCase) -> dict[str, Array]:
    """What the GPU leaves in the expected buffers."""
    device = torch.device("cuda", torch.cuda.current_device())
    buffers = {
        name: torch.from_numpy(np.ascontiguousarray(data).reshape(-1).view(np.uint8)).to(device)
        for name, data in case.buffers.items()
    }
    values: list[ctypes.c_void_p | ctypes.Array[ctypes.c_ubyte]] = []
    for argument in case.arguments:
        if isinstance(argument, str):
            values.append(ctypes.c_void_p(buffers[argument].data_ptr()))
        elif isinstance(argument, MapOf):
            values.append(encode(argument, buffers[argument.buffer].data_ptr()))
        else:
            values.append((ctypes.c_ubyte * len(argument)).from_buffer_copy(argument))
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    kernel = driver.load_kernel(compiled_source(case.source).cubin, case.entry)
    driver.ready_kernel(kernel, device.index, case.smem_bytes)
    stream = torch.cuda.current_stream(device).cuda_stream
    shape = (1, 1, 1, case.threads, 1, 1, case.smem_bytes)
    (status,) = cuda.cuLaunchKernel(kernel, *shape, stream, ctypes.addressof(pointers), 0)
    if status:
        raise ValueError(f"cuLaunchKernel refused {case.name}: {status}")
    torch.cuda.synchronize(device)
    return {
        name: buffers[name].cpu().numpy().view(data.dtype).reshape(data.shape)
        for name, data in case.expected.items()
    }
