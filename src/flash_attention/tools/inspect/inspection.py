# SPDX-License-Identifier: Apache-2.0
"""What can be known about a kernel without running it."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.arch import Arch
from flash_attention.call.features import PLAIN, Features
from flash_attention.compile import CompiledKernel
from flash_attention.compile.elf import text_section
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.kernels import compile_config
from flash_attention.tools.inspect import sass
from flash_attention.tools.inspect.key_block import KeyBlock
from flash_attention.tools.inspect.machine_loop import MachineLoop


@dataclass(frozen=True)
class Inspection:
    """One config compiled for one architecture."""

    config: KernelConfig
    arch: Arch
    features: Features
    compiled: CompiledKernel

    @property
    def registers(self) -> int:
        return self.compiled.resources.registers

    @property
    def spill_bytes(self) -> int:
        return self.compiled.resources.spill_bytes

    @property
    def machine_code(self) -> bytes:
        return text_section(self.compiled.cubin)

    @property
    def ctas_per_sm(self) -> int:
        return self.config.num_ctas_per_sm(self.arch, self.registers)

    @property
    def limited_by(self) -> str:
        """The resources that would all have to grow for one more CTA on an SM."""
        config = self.config
        limits = self.arch.occupancy_limits(config.num_threads, config.smem_bytes(), self.registers)
        return ", ".join(name for name, ctas in limits.items() if ctas == self.ctas_per_sm)

    @property
    def key_block(self) -> KeyBlock:
        return KeyBlock.of(self.config)

    def machine_loop(self) -> MachineLoop:
        """The loop over key blocks; needs nvdisasm."""
        return MachineLoop.of(sass.disassemble(self.compiled.cubin), self.key_block)


def inspect_config(config: KernelConfig, arch: Arch, features: Features = PLAIN) -> Inspection:
    """Compiles a config."""
    return Inspection(config, arch, features, compile_config(config, arch, features))
