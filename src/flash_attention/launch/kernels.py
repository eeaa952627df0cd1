# SPDX-License-Identifier: Apache-2.0
"""The dispatch table: from a kernel config to its kernel, compiled at first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import torch
from cuda.bindings import driver as cuda

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.call.features import PLAIN, Features
from flash_attention.call.tensors import check_config_type
from flash_attention.compile import ENTRY, CompiledKernel, compile_kernel
from flash_attention.compile.unit import combine_unit, translation_unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import check_features_fit
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    KernelConfig,
    get_kernels_to_build,
)
from flash_attention.launch import driver

OLDEST_CAPABILITY = (8, 0)
UNKNOWN_ARCH_CTA_SLOTS = 16  # torch does not report them; no GPU since sm_80 has fewer

Default = TypeVar("Default")


@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """A compiled kernel, what its compiler said of it, and its handle in the driver."""

    config: KernelConfig
    arch: Arch
    compiled: CompiledKernel
    features: Features = PLAIN

    def __repr__(self) -> str:
        words = "".join(f", {word}" for word in self.features.words())
        return f"<Kernel {self.config.short_form()}{words and words + ','} for {self.arch.name}>"

    @cached_property
    def function(self) -> cuda.CUfunction:
        """The driver's handle; asking for it loads the machine code into this process."""
        return driver.load_kernel(self.compiled.cubin, ENTRY)

    @property
    def registers(self) -> int:
        """Registers of one thread."""
        return self.compiled.resources.registers

    @property
    def spills(self) -> int:
        """Bytes a thread stores to and loads from local memory for want of registers."""
        return self.compiled.resources.spill_bytes

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one block of threads."""
        return self.config.smem_bytes()

    @property
    def ctas_per_sm(self) -> int:
        """Blocks of threads that one multiprocessor holds at a time."""
        return self.config.num_ctas_per_sm(self.arch, self.registers)

    @property
    def source_path(self) -> Path | None:
        """The readable CUDA source, None when the cache folder could not be written."""
        return self.compiled.source_path


class DeviceProperties(Protocol):
    """The part of torch's device properties that makes an `Arch`."""

    name: str
    major: int
    minor: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    max_threads_per_multi_processor: int


def arch_of(properties: DeviceProperties) -> Arch:
    """The architecture of a GPU; one newer than this package is described by its own limits."""
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
    """The architecture of one of torch's CUDA devices."""
    if torch.version.cuda is None:
        raise UnsupportedError(
            f"this torch ({torch.__version__}) is not built for CUDA; install one that is"
        )
    properties: Any = torch.cuda.get_device_properties(device_index)
    return arch_of(properties)


@cache
def device_sms(device_index: int) -> int:
    """Multiprocessors of one of torch's CUDA devices."""
    count: int = torch.cuda.get_device_properties(device_index).multi_processor_count
    return count


def current_arch(otherwise: Arch = DEFAULT_ARCH) -> Arch:
    """The architecture of the current device, `otherwise` where there is none."""
    if not torch.cuda.is_available():
        return otherwise
    return device_arch(torch.cuda.current_device())


_kernels: dict[tuple[KernelConfig, Features, Arch], Kernel] = {}


def get_kernel(config: KernelConfig, arch: Arch, features: Features = PLAIN) -> Kernel:
    """The kernel of a config with features, for an architecture; asked again, the same one."""
    check_config_type(config)
    config.check(arch)
    check_features_fit(config, features)
    key = (config, features, arch)
    if key not in _kernels:
        source = translation_unit(config, features)
        name = config.kernel_name() + features.suffix
        compiled = compile_kernel(source, arch=config.target(arch), name=name)
        _kernels.setdefault(key, Kernel(config, arch, compiled, features))
    return _kernels[key]


def compile_config(config: KernelConfig, arch: Arch, features: Features = PLAIN) -> CompiledKernel:
    """Check a config, then compile it for an architecture; nothing is loaded into a GPU."""
    return get_kernel(config, arch, features).compiled


@dataclass(frozen=True, eq=False)
class CombineKernel:
    """The compiled kernel that combines the parts of keys in chunks, and its handle."""

    compiled: CompiledKernel

    @cached_property
    def function(self) -> cuda.CUfunction:
        """The driver's handle; asking for it loads the machine code into this process."""
        return driver.load_kernel(self.compiled.cubin, ENTRY)


def get_combine_kernel(
    config: HopperForwardKernelConfig, chunks: Chunks, target: str
) -> CombineKernel:
    """The kernel that combines the parts that a kernel of `config` stores."""
    return _combine_kernel(
        config.dtype, chunks.features(PLAIN), chunks.tile_rows(config.consumers), target
    )


@cache
def _combine_kernel(dtype: DType, features: Features, tile_rows: int, target: str) -> CombineKernel:
    name = f"combine_{dtype.name.lower()}_{tile_rows}{features.suffix}"
    source = combine_unit(dtype, features, tile_rows)
    return CombineKernel(compile_kernel(source, arch=target, name=name))


def _usable_arch(otherwise: Arch = DEFAULT_ARCH) -> Arch | None:
    try:
        return current_arch(otherwise)
    except UnsupportedError:
        return None


class ForwardKernels(Mapping[KernelConfig, Kernel]):
    """Every config that is valid on the current device, with its kernel of full attention.

    Where there is no device, a config counts for its family's default architecture. Membership
    never compiles; indexing does at first use. Iteration runs over the configs of
    `get_kernels_to_build`, for the valid ones are too many to list.
    """

    def __getitem__(self, config: KernelConfig) -> Kernel:
        check_config_type(config)
        return get_kernel(config, current_arch(config.default_arch))

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, KernelConfig):
            return False
        arch = _usable_arch(config.default_arch)
        return arch is not None and config.broken_rule(arch) is None

    def __iter__(self) -> Iterator[KernelConfig]:
        arch = _usable_arch()
        configs = [] if arch is None else get_kernels_to_build(arch)
        return (config for config in configs if config in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def get(self, key: KernelConfig, /) -> Kernel | None: ...

    @overload
    def get(self, key: KernelConfig, /, default: Default) -> Kernel | Default: ...

    def get(self, key: KernelConfig, /, default: Default | None = None) -> Kernel | Default | None:
        """The kernel, or `default` for a config that is not valid here."""
        if key not in self:
            return default
        return self[key]


forward_kernels = ForwardKernels()
