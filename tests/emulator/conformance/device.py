# SPDX-License-Identifier: Apache-2.0
"""A conformance case on the GPU."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from flash_attention.compile import ENTRY
from flash_attention.launch import driver
from tests.emulator.conformance.case import Array, Case
from tests.emulator.conformance.emulated import Args, compiled
from tests.launch.single import launch


def launched(case: Case, arch: str) -> Array:
    """What the GPU stores in `out`; the kernel is compiled for `arch`."""
    device = torch.device("cuda", torch.cuda.current_device())
    inputs = [torch.from_numpy(array.view(np.uint8).copy()).to(device) for array in case.inputs]
    expected = case.expected
    out = torch.zeros(expected.nbytes, dtype=torch.uint8, device=device)
    args = Args()
    for i, tensor in enumerate(inputs):
        args.inputs[i] = tensor.data_ptr()
    args.out = out.data_ptr()
    kernel = driver.load_kernel(compiled(case, arch).cubin, ENTRY)
    driver.ready_kernel(kernel, device.index, case.smem_bytes)
    stream = torch.cuda.current_stream(device)
    shape = (case.blocks, 1, 1, case.threads, 1, 1, case.smem_bytes)
    pointers = ctypes.c_void_p(ctypes.addressof(args))
    launch(kernel, shape, ctypes.addressof(pointers), stream.cuda_stream, device.index)
    torch.cuda.synchronize(device)
    return out.cpu().numpy().view(expected.dtype)
