# SPDX-License-Identifier: Apache-2.0
"""Loading and launching through the driver, and what it says when it refuses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda.bindings import driver as cuda

from flash_attention.compile import ENTRY, compile_kernel
from flash_attention.errors import LaunchError
from flash_attention.launch import driver
from flash_attention.launch.device import current_arch
from tests.launch.single import launch

SMEM_BYTES = 64 * 1024  # above what a kernel gets without asking
SOURCE = f"""
struct Args {{ int* out; int value; }};
struct Words {{ int first, second; }};
extern "C" __global__ void {ENTRY}(const __grid_constant__ Words added,
                                   const __grid_constant__ Args args) {{
  extern __shared__ int shared[];
  const int last = {SMEM_BYTES // 4 - 1};
  if (threadIdx.x == 0) shared[last] = args.value + added.second;
  __syncthreads();
  args.out[blockIdx.x * blockDim.x + threadIdx.x] = shared[last] + blockIdx.x;
}}
"""


class Args(ctypes.Structure):
    """Mirror of the kernel's parameter."""

    _fields_ = (("out", ctypes.c_void_p), ("value", ctypes.c_int32))


Words = ctypes.c_int32 * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a driver")
def test_without_a_driver_the_error_says_what_is_missing() -> None:
    with pytest.raises(LaunchError, match=r"cuInit could not be called.*\n.*NVIDIA driver"):
        driver.load_kernel(b"", ENTRY)


Calls = list[tuple[str, tuple[Any, ...]]]
SUCCESS = cuda.CUresult.CUDA_SUCCESS
KERNEL = cuda.CUfunction(77)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the driver is asked for, which succeeds."""
    noted: Calls = []

    def stand_in(name: str, *results: object) -> Callable[..., Any]:
        def note(*arguments: object) -> tuple[object, ...]:
            noted.append((name, arguments))
            return (SUCCESS, *results)

        note.__name__ = name
        return note

    answers: dict[str, tuple[object, ...]] = {
        "cuDeviceGet": ("a device",),
        "cuDevicePrimaryCtxRetain": ("its context",),
        "cuCtxSetCurrent": (),
        "cuKernelSetAttribute": (),
        "cuKernelGetFunction": (KERNEL,),
    }
    for name, results in answers.items():
        monkeypatch.setattr(cuda, name, stand_in(name, *results))
    monkeypatch.setattr(driver, "launch_kernel", stand_in("cuLaunchKernelEx"))
    monkeypatch.setattr(driver, "_primary_context", driver._primary_context.__wrapped__)
    return noted


def asked_for(calls: Calls, name: str) -> list[tuple[Any, ...]]:
    return [arguments for asked, arguments in calls if asked == name]


@pytest.mark.parametrize(("smem_bytes", "asks"), [(0, 0), (49152, 0), (49153, 1), (200_000, 1)])
def test_a_kernel_asks_for_more_shared_memory_than_48_kib(
    smem_bytes: int, asks: int, calls: Calls
) -> None:
    driver.ready_kernel(KERNEL, 3, smem_bytes)
    asked = asked_for(calls, "cuKernelSetAttribute")
    assert len(asked) == asks
    for attribute, value, kernel, device in asked:
        assert attribute.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        assert (value, int(kernel), device) == (smem_bytes, 77, "a device")
    assert set(asked_for(calls, "cuDeviceGet")) == {(3,)}
    assert asked_for(calls, "cuCtxSetCurrent") == [("its context",)]
    name, (kernel,) = calls[-1]
    assert (name, int(kernel)) == ("cuKernelGetFunction", 77)


SHAPE = (5, 2, 3, 128, 1, 1, 1000)


@pytest.mark.parametrize("early", [False, True])
def test_a_launch_passes_the_shape_the_stream_and_the_parameters(early: bool, calls: Calls) -> None:
    launch(KERNEL, SHAPE, 4096, 9, 0, early=early)
    ((config, *rest),) = asked_for(calls, "cuLaunchKernelEx")
    assert rest == [KERNEL, 4096, 0]
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == SHAPE[3:6]
    assert (config.sharedMemBytes, config.numAttrs) == (1000, int(early))
    assert len(config.attrs) == int(early)
    for grid, stream in ((SHAPE[:3], 9), ((7, 1, 2), 10)):
        driver.put_grid(config, grid, stream)
        assert (config.gridDimX, config.gridDimY, config.gridDimZ) == grid
        assert int(config.hStream) == stream
        assert len(config.attrs) == int(early)


def test_a_launch_has_clusters(calls: Calls) -> None:
    launch(KERNEL, SHAPE, 4096, 9, 0, early=True, cluster=(1, 2, 3))
    ((config, *_),) = asked_for(calls, "cuLaunchKernelEx")
    early, clusters = config.attrs
    assert early.value.programmaticStreamSerializationAllowed == 1
    assert clusters.id.name == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
    size = clusters.value.clusterDim
    assert (size.x, size.y, size.z) == (1, 2, 3)


def test_a_thread_without_a_context_gets_the_devices_and_launches_again(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = [driver.NO_CONTEXT, SUCCESS]

    def fail_once(*arguments: object) -> tuple[cuda.CUresult]:
        calls.append(("cuLaunchKernelEx", arguments))
        return (statuses.pop(0),)

    monkeypatch.setattr(driver, "launch_kernel", fail_once)
    launch(KERNEL, SHAPE, 4096, 9, 2)
    assert [name for name, _ in calls] == [
        "cuLaunchKernelEx",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuLaunchKernelEx",
    ]
    assert asked_for(calls, "cuDeviceGet") == [(2,)]
    first, second = asked_for(calls, "cuLaunchKernelEx")
    assert first == second
    assert first[1:] == (KERNEL, 4096, 0)


def test_an_early_launch_may_start_before_the_one_before_it_has_ended(calls: Calls) -> None:
    launch(KERNEL, SHAPE, 4096, 9, 0, early=True)
    ((config, *_),) = asked_for(calls, "cuLaunchKernelEx")
    (attribute,) = config.attrs
    assert attribute.id.name == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_what_the_driver_refuses_is_named(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    monkeypatch.setattr(cuda, "cuGetErrorString", lambda status: (SUCCESS, b"it is not valid"))
    monkeypatch.setattr(driver, "launch_kernel", lambda *arguments: (invalid,))
    reason = r"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE \(1\): it is not valid"
    with pytest.raises(LaunchError, match=reason):
        launch(KERNEL, SHAPE, 4096, 9, 0)
    assert calls == []


def fill(out: torch.Tensor, value: int, *, ready: bool = True, threads: int = 32) -> None:
    """Store `value` plus the block's number in `out`, two blocks of threads."""
    compiled = compile_kernel(SOURCE, arch=current_arch().name, name="fill")
    kernel = driver.load_kernel(compiled.cubin, ENTRY)
    index = out.get_device()
    if ready:
        driver.ready_kernel(kernel, index, SMEM_BYTES)
    parameters = (Words(1000, 3), Args(out.data_ptr(), value - 3))
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, parameters))
    shape = (2, 1, 1, threads, 1, 1, SMEM_BYTES)
    launch(kernel, shape, ctypes.addressof(pointers), 0, index)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_kernel_with_much_shared_memory_runs() -> None:
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    fill(out, 40)
    assert out.tolist() == [40] * 32 + [41] * 32


@pytest.mark.gpu
def test_a_thread_that_never_used_cuda_can_launch() -> None:
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    thread = threading.Thread(target=fill, args=(out, 7))
    thread.start()
    thread.join()
    assert out.tolist() == [7] * 32 + [8] * 32


@pytest.mark.gpu
def test_a_refused_launch_names_the_driver_error() -> None:
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    message = r"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE \(1\): invalid argument"
    with pytest.raises(LaunchError, match=message):
        fill(out, 1, ready=False)
    with pytest.raises(LaunchError, match=message):
        fill(out, 1, threads=4096)
    assert not out.any()


@pytest.mark.gpu
def test_what_is_no_machine_code_and_a_missing_entry_are_refused() -> None:
    compiled = compile_kernel(SOURCE, arch=current_arch().name, name="fill")
    with pytest.raises(LaunchError, match=r"failed: CUDA_ERROR_INVALID_IMAGE"):
        driver.load_kernel(b"this is neither a cubin nor PTX\0", ENTRY)
    with pytest.raises(LaunchError, match=r"cuLibraryGetKernel failed: CUDA_ERROR_NOT_FOUND"):
        driver.load_kernel(compiled.cubin, "no_such_kernel")
