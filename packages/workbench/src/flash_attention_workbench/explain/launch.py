# SPDX-License-Identifier: Apache-2.0
"""Launch: one kernel launch of a call, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.arch import Arch
from flash_attention.families.recipe import Step
from flash_attention.launch.kernels import load_unit


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a call: its geometry and the resources of the compiled kernel."""

    name: str
    grid: tuple[int, int, int]
    threads: int  # per CTA
    smem_bytes: int  # dynamic, per CTA
    registers: int  # per thread
    spill_bytes: int  # stored and loaded, per thread
    compile_seconds: float | None  # None if it came from the disk cache
    ctas_per_sm: int
    limited_by: str  # the resource that limits ctas_per_sm
    cluster: tuple[int, int, int] | None = None  # CTAs of a cluster, if the launch has clusters

    @classmethod
    def of(cls, step: Step, arch: Arch) -> Launch:
        """Compile a kernel of a recipe and describe its launch."""
        compiled, geometry = load_unit(step.unit).compiled, step.geometry
        resources = compiled.resources
        limits = arch.occupancy_limits(geometry.block, geometry.smem_bytes, resources.registers)
        fewest = min(limits.values())
        return cls(
            *(compiled.name, geometry.grid, geometry.block, geometry.smem_bytes),
            registers=resources.registers,
            spill_bytes=resources.spill_bytes,
            compile_seconds=compiled.compile_seconds,
            ctas_per_sm=fewest,
            limited_by=" and ".join(name for name, count in limits.items() if count == fewest),
            cluster=geometry.cluster,
        )

    def lines(self) -> list[str]:
        """Return the launch as text."""
        spills = f"{self.spill_bytes} bytes of spills" if self.spill_bytes else "no spills"
        origin = (
            "from the disk cache"
            if self.compile_seconds is None
            else f"compiled by this process in {self.compile_seconds:.2f} s"
        )
        ctas = "1 CTA" if self.ctas_per_sm == 1 else f"{self.ctas_per_sm} CTAs"
        clusters = f" in clusters of {self.cluster}" if self.cluster else ""
        return [
            f"{self.name}, {origin}",
            f"grid {self.grid}{clusters}, {self.threads} threads, {self.smem_bytes:,} bytes of"
            " shared memory",
            f"{self.registers} registers, {spills}; {ctas} a multiprocessor, limited by"
            f" {self.limited_by}",
        ]
