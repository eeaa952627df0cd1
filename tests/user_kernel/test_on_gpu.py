# SPDX-License-Identifier: Apache-2.0
"""Kernels of the corpus on the GPU: what they store is what the emulator stores."""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention.compile.nvrtc import compile_source
from flash_attention.launch import driver
from ptx_emulator import Empty
from ptx_emulator.types import numpy_type
from ptx_emulator.user_kernel.host_headers import HOST_HEADERS
from ptx_emulator.user_kernel.kernel import UserKernel, three_sizes
from tests.launch.single import launch as launch_kernel
from tests.user_kernel.corpus_kernels import CORPUS, clean, corpus_kernel
from tests.user_kernel.corpus_launches import FILES, launches, more_launches
from tests.user_kernel.pattern_cases import cases

HOPPER = (9, 0)
Launch = dict[str, Any]


PATTERNS = cases()
KERNELS = FILES | {name: case.file for name, case in PATTERNS.items() if not case.variables}
NEED_HOPPER = ("hopper.cu", "pipelines.cu")


def case(entry: str) -> tuple[UserKernel, tuple[Any, ...], Launch]:
    launched_as = {name: (case.arguments, case.launch) for name, case in PATTERNS.items()}
    arguments, launch = {**launches(), **more_launches(), **launched_as}[entry]
    file = KERNELS[entry]
    kernel = corpus_kernel(file, entry, "sm_90a" if file in NEED_HOPPER else "sm_80")
    return kernel, copy.deepcopy(arguments), launch


@pytest.mark.parametrize("entry", FILES)
def test_the_emulator_runs_every_case(entry: str) -> None:
    kernel, arguments, launch = case(entry)
    results = clean(kernel, *arguments, **launch).arrays
    floats = [array for array in results if array.dtype.kind == "f"]
    assert not any(np.isnan(array.astype(np.float64)).any() for array in floats)


@pytest.mark.gpu
@pytest.mark.parametrize("entry", KERNELS)
def test_the_gpu_stores_the_same(entry: str) -> None:
    if KERNELS[entry] in NEED_HOPPER and torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("needs a Hopper GPU")
    kernel, arguments, launch = case(entry)
    got = launched(kernel, KERNELS[entry], arguments, launch)
    wanted = clean(kernel, *arguments, **launch).arrays
    for ours, theirs in zip(wanted, got, strict=True):
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(theirs, ours)


def launched(
    kernel: UserKernel, file: str, arguments: tuple[Any, ...], launch: Launch
) -> list[np.ndarray[Any, Any]]:
    """The arrays after a launch on the GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"-arch=sm_{major}{minor}{'a' if (major, minor) == HOPPER else ''}"
    path = CORPUS / file
    compiled = compile_source(
        path.read_text(),
        source_name=str(path),
        arguments=(arch, "-std=c++20"),
        headers=HOST_HEADERS,
    )
    arrays = [_array(value) for value in arguments]
    tensors = [
        None if array is None else torch.from_numpy(array.view(np.uint8).reshape(-1)).to(device)
        for array in arrays
    ]
    blocks = []
    for param, value, tensor in zip(kernel.program.kernel.params, arguments, tensors, strict=True):
        number = value if tensor is None else tensor.data_ptr()
        block = np.array(number).astype(numpy_type(param.type)).tobytes()
        blocks.append((ctypes.c_ubyte * param.size).from_buffer_copy(block))
    pointers = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
    smem = launch.get("dynamic_smem", 0)
    function = driver.load_kernel(compiled.cubin, kernel.program.kernel.name)
    driver.ready_kernel(function, device.index, smem)
    shape = (*three_sizes("grid", launch["grid"]), *three_sizes("block", launch["block"]), smem)
    stream = torch.cuda.current_stream(device).cuda_stream
    launch_kernel(function, shape, ctypes.addressof(pointers), stream, device.index)
    torch.cuda.synchronize(device)
    return [
        tensor.cpu().numpy().view(array.dtype).reshape(array.shape)
        for tensor, array in zip(tensors, arrays, strict=True)
        if tensor is not None and array is not None
    ]


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, Empty):
        return np.zeros(value.shape, value.dtype)
    return value.copy() if isinstance(value, np.ndarray) else None
