# SPDX-License-Identifier: Apache-2.0
"""Loading and launching through the driver, and what it says when it refuses."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch

from flash_attention.compile import ENTRY, compile_kernel
from flash_attention.errors import LaunchError
from flash_attention.launch import driver
from flash_attention.launch.kernels import current_arch

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


def fill(out: torch.Tensor, value: int, *, ready: bool = True, threads: int = 32) -> None:
    """Store `value` plus the block's number in `out`, two blocks of threads."""
    compiled = compile_kernel(SOURCE, arch=current_arch().name, name="fill")
    kernel = driver.load_kernel(compiled.cubin, ENTRY)
    index = out.get_device()
    if ready:
        driver.ready_kernel(kernel, index, SMEM_BYTES)
    parameters = (Words(1000, 3), Args(out.data_ptr(), value - 3))
    driver.launch_kernel(kernel, (2, 1, 1, threads, 1, 1, SMEM_BYTES), parameters, 0, index)
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
    message = r"cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE \(1\): invalid argument"
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
