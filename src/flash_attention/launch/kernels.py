# SPDX-License-Identifier: Apache-2.0
"""The dispatch table: it maps a kernel config to its kernel, which is compiled at first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar, overload

from cuda.bindings import driver as cuda

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.features import PLAIN, Features
from flash_attention.compile import CompiledKernel, compile_kernel
from flash_attention.compile.unit import Unit
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.given import GivenConfig
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import as_kernel_config, get_kernels_to_build
from flash_attention.launch import driver
from flash_attention.launch.device import current_arch

Default = TypeVar("Default")


@dataclass(frozen=True, eq=False)
class LoadedUnit:
    """A compiled translation unit and its driver handle."""

    compiled: CompiledKernel

    @cached_property
    def function(self) -> cuda.CUfunction:
        """The driver's handle; asking for it loads the machine code into this process."""
        return driver.load_kernel(self.compiled.cubin, self.compiled.entry)


_units: dict[Unit, LoadedUnit] = {}


def load_unit(unit: Unit) -> LoadedUnit:
    """Return the kernel of a translation unit. Later calls return the same object."""
    if unit not in _units:
        compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
        _units.setdefault(unit, LoadedUnit(compiled))
    return _units[unit]


@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """The kernel of a config: its compiled code, its resources and its driver handle."""

    config: KernelConfig
    arch: Arch
    unit: LoadedUnit
    features: Features = PLAIN

    def __repr__(self) -> str:
        words = "".join(f", {word}" for word in self.features.words())
        return f"<Kernel {self.config.short_form()}{words and words + ','} for {self.arch.name}>"

    @property
    def compiled(self) -> CompiledKernel:
        """The compiled translation unit. Reading this compiles it at first use."""
        return self.unit.compiled

    @property
    def function(self) -> cuda.CUfunction:
        """The driver's handle; asking for it loads the machine code into this process."""
        return self.unit.function

    @property
    def registers(self) -> int:
        """The number of registers of a thread."""
        return self.compiled.resources.registers

    @property
    def spills(self) -> int:
        """The bytes that a thread spills to local memory and loads back."""
        return self.compiled.resources.spill_bytes

    @property
    def smem_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA."""
        return self.config.smem_bytes()

    @property
    def ctas_per_sm(self) -> int:
        """The number of CTAs that are resident on one multiprocessor."""
        return self.config.num_ctas_per_sm(arch=self.arch, registers=self.registers)

    @property
    def source_path(self) -> Path | None:
        """The path of the CUDA source, or None if the cache folder could not be written."""
        return self.compiled.source_path


_kernels: dict[tuple[KernelConfig, Features, Arch], Kernel] = {}


def get_kernel(config: KernelConfig, arch: Arch, features: Features = PLAIN) -> Kernel:
    """Return the kernel of a config with features on an architecture. Later calls return the same
    object."""
    family = family_of(config)
    config.check(arch)
    resolved = family.resolve(config, features)
    key = (config, resolved, arch)
    if key not in _kernels:
        loaded = load_unit(family.unit(config, resolved, arch))
        _kernels.setdefault(key, Kernel(config, arch, loaded, resolved))
    return _kernels[key]


def compile_config(config: KernelConfig, arch: Arch, features: Features = PLAIN) -> CompiledKernel:
    """Check a config and compile it for an architecture. Nothing is loaded onto a GPU."""
    return get_kernel(config, arch, features).compiled


def _usable_arch(otherwise: Arch = DEFAULT_ARCH) -> Arch | None:
    try:
        return current_arch(otherwise)
    except UnsupportedError:
        return None


class ForwardKernels(Mapping[GivenConfig, Kernel]):
    """A mapping from every config that is valid on the current device to its unmasked kernel.

    A key is a config, its short form, or a rung such as "rung:5", which stands for FP16 and d_head
    128. Without a device, the default architecture of the config's family counts. `in` never
    compiles a kernel; indexing compiles it at first use. Iteration covers the configs of
    `get_kernels_to_build`, because there are too many valid configs to list.
    """

    def __getitem__(self, given: GivenConfig) -> Kernel:
        config = as_kernel_config(given)
        return get_kernel(config, current_arch(config.default_arch))

    def __contains__(self, given: object) -> bool:
        try:
            config = as_kernel_config(given)
        except (KernelConfigError, UnsupportedError):
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
    def get(self, key: GivenConfig, /) -> Kernel | None: ...

    @overload
    def get(self, key: GivenConfig, /, default: Default) -> Kernel | Default: ...

    def get(self, key: GivenConfig, /, default: Default | None = None) -> Kernel | Default | None:
        """Return the kernel, or `default` if the config is not valid on the device."""
        if key not in self:
            return default
        return self[key]


forward_kernels = ForwardKernels()
