# SPDX-License-Identifier: Apache-2.0
"""What every unit of a machine knows of the launch."""

from __future__ import annotations

from math import prod

from ptx_emulator.machine.launch.clocks import Clocks
from ptx_emulator.machine.launch.counters import Counters
from ptx_emulator.machine.launch.findings import Findings
from ptx_emulator.machine.launch.geometry import geometry_of
from ptx_emulator.machine.storage.owners import Owners
from ptx_emulator.native import load_native
from ptx_emulator.program.program import Program


class Launch:
    """A program over a grid: its lanes, who has seen what of whom, what was found and counted."""

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int, int],
        block: int | tuple[int, int, int],
        dynamic_smem: int,
        checks: bool,
        cluster: tuple[int, int, int] | None,
    ) -> None:
        self.program = program
        self.grid = grid
        self.block_shape = (block, 1, 1) if isinstance(block, int) else block
        self.block = prod(self.block_shape)
        self.checks = checks
        shape = cluster or program.kernel.cluster or (1, 1, 1)
        geometry = geometry_of(program, grid, self.block_shape, shape, dynamic_smem)
        self.geometry = geometry
        self.clusters = geometry.clusters
        self.num_ctas = geometry.num_ctas
        self.warps_per_cta = geometry.warps_per_cta
        self.num_warps = geometry.num_warps
        self.shared_limit = geometry.shared_limit
        self.shared_stride = geometry.shared_stride
        self.shared_bytes = prod(grid) * self.shared_stride
        self.shared_owners: Owners = geometry.shared_owners if checks else {}
        self.lanes = geometry.lanes
        self.num_lanes = self.lanes.count
        self.gone = self.lanes.missing.copy()  # lanes that do not run, or not any more
        self.findings = Findings(program, self.clusters)
        library = load_native()
        self.native = None if library is None else library.of_a_launch()
        self.counters = Counters(program, self.native)
        self.clocks = Clocks(program, geometry, self.native)
