# SPDX-License-Identifier: Apache-2.0
"""Calls of the CUDA driver: load a cubin, prepare its kernel on a device, launch it.

The first call opens libcuda, so this module can be imported on a machine without a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from cuda.bindings import driver as cuda

from flash_attention.errors import LaunchError

DEFAULT_SMEM_LIMIT = 48 * 1024  # bytes of dynamic shared memory that need no opt-in
NO_CONTEXT = cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT

launch_kernel = cuda.cuLaunchKernelEx
"""Queues a kernel. The third argument is the address of an array of the addresses of all
parameters, which the driver copies before it returns."""


def load_kernel(cubin: bytes, entry: str) -> cuda.CUfunction:
    """Load the kernel `entry` of a cubin for every context of this process."""
    _call(cuda.cuInit, 0)
    library = _call(cuda.cuLibraryLoadData, cubin, [], [], 0, [], [], 0)
    kernel = _call(cuda.cuLibraryGetKernel, library, entry.encode())
    return cuda.CUfunction(int(kernel))  # a launch takes either kind of handle


def ready_kernel(kernel: cuda.CUfunction, device_index: int, smem_bytes: int) -> None:
    """Load the kernel's code onto the device and opt in to its dynamic shared memory."""
    bind_primary_context(device_index)
    handle = cuda.CUkernel(int(kernel))
    if smem_bytes > DEFAULT_SMEM_LIMIT:
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = _call(cuda.cuDeviceGet, device_index)
        _call(cuda.cuKernelSetAttribute, attribute, smem_bytes, handle, device)
    _call(cuda.cuKernelGetFunction, handle)


def bind_primary_context(device_index: int) -> None:
    """Make the device's primary context, which torch uses, current in this thread."""
    _call(cuda.cuCtxSetCurrent, _primary_context(device_index))


def zeros(device_index: int, size: int) -> int:
    """Allocate `size` zero bytes on the device until the process ends. Returns the address.

    torch's allocators do not own the memory. A graph capture is not disturbed: it is relaxed for
    this thread, and the zeros are written on a stream that nothing waits for.
    """
    bind_primary_context(device_index)
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = _call(cuda.cuThreadExchangeStreamCaptureMode, relaxed)
    try:
        address = _call(cuda.cuMemAlloc, size)
        stream = _call(cuda.cuStreamCreate, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        _call(cuda.cuMemsetD8Async, address, 0, size, stream)
        _call(cuda.cuStreamSynchronize, stream)
        _call(cuda.cuStreamDestroy, stream)
    finally:
        _call(cuda.cuThreadExchangeStreamCaptureMode, before)
    return int(address)


def launch_config(
    block: int,
    smem_bytes: int,
    *,
    early: bool = False,
    cluster: tuple[int, int, int] | None = None,
) -> cuda.CUlaunchConfig:
    """Make the driver's config of a launch without its grid and stream.

    With `early` the CTAs may start before the previous kernel of the stream ends, and wait for it
    themselves (griddepcontrol). `cluster` is the size of a cluster, None if the kernel says it.
    """
    config = cuda.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = smem_bytes
    attributes = [_starts_early()] if early else []
    if cluster is not None:
        attributes.append(_in_clusters(*cluster))
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def put_grid(config: cuda.CUlaunchConfig, grid: tuple[int, int, int], stream: int) -> None:
    """Store the grid and the stream of the next launches in a config."""
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.hStream = stream


def launch_again(
    status: cuda.CUresult,
    config: cuda.CUlaunchConfig,
    kernel: cuda.CUfunction | None,
    parameters: int,
    device_index: int,
) -> None:
    """Repeat a launch that failed in a thread that has not used CUDA yet. Other failures raise
    LaunchError."""
    if status == NO_CONTEXT:
        bind_primary_context(device_index)
        (status,) = launch_kernel(config, kernel, parameters, 0)
    if status:
        raise error("cuLaunchKernelEx", status)


def _starts_early() -> cuda.CUlaunchAttribute:
    early = cuda.CUlaunchAttribute()
    early.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early.value.programmaticStreamSerializationAllowed = 1
    return early


def _in_clusters(x: int, y: int, z: int) -> cuda.CUlaunchAttribute:
    clusters = cuda.CUlaunchAttribute()
    clusters.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = clusters.value.clusterDim
    size.x, size.y, size.z = x, y, z
    return clusters


@cache
def _primary_context(device_index: int) -> cuda.CUcontext:
    return _call(cuda.cuDevicePrimaryCtxRetain, _call(cuda.cuDeviceGet, device_index))


def _call(function: Callable[..., Any], *args: object) -> Any:
    """Call the driver and return its result. Raises LaunchError if it fails."""
    try:
        status, *results = function(*args)
    except RuntimeError as missing:  # libcuda is missing, or too old for the function
        raise not_callable(function.__name__, missing) from missing
    if status:
        raise error(function.__name__, status)
    return results[0] if results else None


def error(function_name: str, status: cuda.CUresult) -> LaunchError:
    """Make the error for a status of the driver."""
    _, text = cuda.cuGetErrorString(status)
    return LaunchError(f"{function_name} failed: {status.name} ({int(status)}): {text.decode()}")


def not_callable(function_name: str, reason: Exception) -> LaunchError:
    """Make the error for a missing driver or driver function."""
    return LaunchError(
        f"{function_name} could not be called: {reason}\n"
        "an NVIDIA driver for CUDA 12.0 or newer is needed"
    )
