# SPDX-License-Identifier: Apache-2.0
"""What can be known about a kernel without running it."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.arch import Arch
from flash_attention.call.features import PLAIN, Features
from flash_attention.compile.elf import text_section
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.kernels import Kernel, get_kernel
from flash_attention_workbench.inspect import sass
from flash_attention_workbench.inspect.key_block import KeyBlock
from flash_attention_workbench.inspect.machine_loop import MachineLoop


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Kernel):
    """One config compiled for one architecture; it is never loaded."""

    @property
    def machine_code(self) -> bytes:
        return text_section(self.compiled.cubin)

    @property
    def limited_by(self) -> str:
        """The resources that would all have to grow for one more CTA on an SM."""
        threads = self.config.num_threads
        limits = self.arch.occupancy_limits(threads, self.smem_bytes, self.registers)
        return ", ".join(name for name, ctas in limits.items() if ctas == self.ctas_per_sm)

    @property
    def key_block(self) -> KeyBlock:
        return KeyBlock.of(self.config)

    def machine_loop(self) -> MachineLoop:
        """The loop over key blocks; needs nvdisasm."""
        return MachineLoop.of(sass.disassemble(self.compiled.cubin), self.key_block)


def inspect_config(config: KernelConfig, arch: Arch, features: Features = PLAIN) -> Inspection:
    """Compiles a config."""
    return Inspection(config, arch, get_kernel(config, arch, features).unit, features)
