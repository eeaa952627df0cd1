# SPDX-License-Identifier: Apache-2.0
"""The architectures of the GPUs of this machine, as torch reports them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.errors import UnsupportedError

OLDEST_CAPABILITY = (8, 0)
UNKNOWN_ARCH_CTA_SLOTS = 16  # resident CTAs per SM, which torch does not report; no GPU has fewer
CPU = -1  # device index of CPU tensors, whose kernel is emulated
EMULATED_SMS = 2  # few, so that a persistent CTA computes several tiles


class DeviceProperties(Protocol):
    """The device properties of torch that an `Arch` is made from."""

    name: str
    major: int
    minor: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    max_threads_per_multi_processor: int


def arch_of(properties: DeviceProperties) -> Arch:
    """Return the architecture of a GPU. A newer GPU than this package knows reports its limits."""
    capability = (properties.major, properties.minor)
    name = f"sm_{properties.major}{properties.minor}"
    if capability < OLDEST_CAPABILITY:
        raise UnsupportedError(
            f"{properties.name} is {name}; the kernels need sm_80 (Ampere) or newer"
        )
    return ARCHES.get(name) or Arch(
        name,
        properties.shared_memory_per_block_optin,
        properties.shared_memory_per_multiprocessor,
        properties.max_threads_per_multi_processor,
        UNKNOWN_ARCH_CTA_SLOTS,
    )


@cache
def device_arch(device_index: int) -> Arch:
    """Return the architecture of a CUDA device."""
    if torch.version.cuda is None:
        raise UnsupportedError(
            f"this torch ({torch.__version__}) is not built for CUDA; install one that is"
        )
    properties: Any = torch.cuda.get_device_properties(device_index)
    return arch_of(properties)


@cache
def device_sms(device_index: int) -> int:
    """Return the number of multiprocessors of a CUDA device."""
    count: int = torch.cuda.get_device_properties(device_index).multi_processor_count
    return count


def current_arch(otherwise: Arch = DEFAULT_ARCH) -> Arch:
    """Return the architecture of the current device, or `otherwise` if there is none."""
    if not torch.cuda.is_available():
        return otherwise
    return device_arch(torch.cuda.current_device())


def num_sms_of(device_index: int) -> int:
    """Return the number of multiprocessors of a device or of the emulator."""
    return EMULATED_SMS if device_index == CPU else device_sms(device_index)


def _stream_of_object(device_index: int) -> int:
    handle: int = torch.cuda.current_stream(device_index).cuda_stream
    return handle


# torch's own functions make objects and call each other, which takes microseconds.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _stream_of_object
)
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""The current device of a process that has initialised CUDA."""
is_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
"""Whether the current stream records a CUDA graph."""
