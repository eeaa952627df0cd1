# SPDX-License-Identifier: Apache-2.0
"""A conformance case for sm_90a on the GPU, with tensor maps made by the driver."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from flash_attention.families.recipe import MapDescription
from flash_attention.launch import driver
from flash_attention.launch.tensor_map import MAP_BYTES, EncodedMaps
from tests.emulator.conformance.case import Array
from tests.emulator.conformance.hopper_case import HopperCase, MapOf, compiled_source
from tests.launch.single import launch


def description(described: MapOf) -> MapDescription:
    """The package's description of the same map, of elements as wide as its words."""
    return MapDescription(
        described.dims,
        described.strides,
        described.box,
        described.swizzle,
        torch.float16,
        steps=described.steps,
    )


def launched_hopper(case: HopperCase) -> dict[str, Array]:
    """What the GPU leaves in the expected buffers."""
    device = torch.device("cuda", torch.cuda.current_device())
    buffers = {
        name: torch.from_numpy(np.ascontiguousarray(data).reshape(-1).view(np.uint8)).to(device)
        for name, data in case.buffers.items()
    }
    values: list[Any] = []
    kept: list[object] = []  # memory of maps
    for argument in case.arguments:
        if isinstance(argument, str):
            values.append(ctypes.c_void_p(buffers[argument].data_ptr()))
        elif isinstance(argument, MapOf):
            address = buffers[argument.buffer].data_ptr()
            maps = EncodedMaps(description(argument), device.index, 0)
            encoded = maps[address, maps.size]
            kept.append(encoded)
            values.append((ctypes.c_ubyte * MAP_BYTES).from_address(encoded.at))
        else:
            values.append((ctypes.c_ubyte * len(argument)).from_buffer_copy(argument))
    kernel = driver.load_kernel(compiled_source(case.source).cubin, case.entry)
    driver.ready_kernel(kernel, device.index, case.smem_bytes)
    stream = torch.cuda.current_stream(device).cuda_stream
    shape = (1, 1, 1, case.threads, 1, 1, case.smem_bytes)
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    launch(kernel, shape, ctypes.addressof(pointers), stream, device.index)
    torch.cuda.synchronize(device)
    return {
        name: buffers[name].cpu().numpy().view(data.dtype).reshape(data.shape)
        for name, data in case.expected.items()
    }
