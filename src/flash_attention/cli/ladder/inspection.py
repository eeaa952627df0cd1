# SPDX-License-Identifier: Apache-2.0
"""What can be known about a rung without running it."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.arch import Arch
from flash_attention.cli.ladder.instructions import InstructionCounts, count_instructions
from flash_attention.compiler import CompiledKernel
from flash_attention.compiler.elf import text_section
from flash_attention.dispatch import compile_config
from flash_attention.features import CAUSAL, PLAIN
from flash_attention.ladder import Rung


@dataclass(frozen=True)
class Inspection:
    """One rung compiled for one architecture."""

    rung: Rung
    arch: Arch
    compiled: CompiledKernel
    instructions: InstructionCounts

    @property
    def registers(self) -> int:
        return self.compiled.resources.registers

    @property
    def spill_bytes(self) -> int:
        resources = self.compiled.resources
        return resources.spill_store_bytes + resources.spill_load_bytes

    @property
    def machine_code(self) -> bytes:
        return text_section(self.compiled.cubin)

    @property
    def ctas_per_sm(self) -> int:
        return self.rung.config.num_ctas_per_sm(self.arch, self.registers)

    @property
    def limited_by(self) -> str:
        """The resources that would all have to grow for one more CTA on an SM."""
        config = self.rung.config
        limits = self.arch.occupancy_limits(config.num_threads, config.smem_bytes(), self.registers)
        return ", ".join(name for name, ctas in limits.items() if ctas == self.ctas_per_sm)


def inspect_rung(rung: Rung, arch: Arch, causal: bool = False) -> Inspection:
    """Compiles a rung and counts its instructions."""
    compiled = compile_config(rung.config, arch, CAUSAL if causal else PLAIN)
    return Inspection(rung, arch, compiled, count_instructions(compiled))
