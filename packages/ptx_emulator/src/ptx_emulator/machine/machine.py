# SPDX-License-Identifier: Apache-2.0
"""The machine a program runs on: lanes, registers, and one component a kind of hardware."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.barriers import NamedBarriers
from ptx_emulator.machine.bulk_copies import BulkCopies
from ptx_emulator.machine.bulk_groups import BulkGroups
from ptx_emulator.machine.clocks import Clocks
from ptx_emulator.machine.constant import ConstantAccess
from ptx_emulator.machine.copies import AsyncCopies
from ptx_emulator.machine.counters import Counters
from ptx_emulator.machine.findings import Findings
from ptx_emulator.machine.generic import GenericAccess
from ptx_emulator.machine.geometry import Geometry, geometry_of
from ptx_emulator.machine.global_access import GlobalAccess
from ptx_emulator.machine.global_memory import GlobalMemory
from ptx_emulator.machine.kernel_before import KernelBefore
from ptx_emulator.machine.lanes import (
    LOCAL_BASE,
    PARAM_BASE,
    Bools,
    Selection,
)
from ptx_emulator.machine.matrix import MatrixUnit
from ptx_emulator.machine.mbarriers import MBarriers
from ptx_emulator.machine.owners import global_owners
from ptx_emulator.machine.printing import Printer
from ptx_emulator.machine.private import PrivateMemory
from ptx_emulator.machine.register_pool import RegisterPool
from ptx_emulator.machine.shared import SharedMemory
from ptx_emulator.machine.tensor_map import TensorMap
from ptx_emulator.machine.tma import Tma
from ptx_emulator.machine.warp import WarpUnit
from ptx_emulator.machine.wgmma import Wgmma
from ptx_emulator.machine.wmma import Wmma
from ptx_emulator.machine.written import WrittenRegisters
from ptx_emulator.native import load_native
from ptx_emulator.program.hooks import Debugger
from ptx_emulator.program.program import Program
from ptx_emulator.types import numpy_type

Argument = int | float | bytes | ctypes.Structure | TensorMap

TICK = 64  # cycles and nanoseconds from one look at a clock to the next


class Machine:
    """One launch: `program` over a grid, with its arguments and its memory."""

    debugger: Debugger | None = None

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        grid: tuple[int, int, int],
        block: int | tuple[int, int, int],
        args: Sequence[Argument],
        dynamic_smem: int,
        checks: bool,
        cluster: tuple[int, int, int] | None = None,
        starts_early: bool = False,
    ) -> None:
        self.program = program
        self.grid = grid
        self.block_shape = (block, 1, 1) if isinstance(block, int) else block
        self.block = prod(self.block_shape)
        self.checks = checks
        shape = cluster or program.kernel.cluster or (1, 1, 1)
        geometry = geometry_of(program, grid, self.block_shape, shape, dynamic_smem)
        self._take_geometry(geometry)
        self.gone = self.lanes.missing.copy()  # lanes that do not run, or not any more
        self.tensor_maps: dict[int, TensorMap] = {}

        self.findings = Findings(program, self.clusters)
        library = load_native()
        self.native = None if library is None else library.of_a_launch()
        self.counters = Counters(program, self.native)
        self.clocks = Clocks(self)
        self.kernel_before = KernelBefore(self, memory, starts_early)
        self.shared = SharedMemory(self)
        if checks:
            self.shared.owners = geometry.shared_owners
        self.global_access = GlobalAccess(self, memory)
        self.local = PrivateMemory(self, "local", LOCAL_BASE, program.local_bytes)
        self.constant_access = ConstantAccess(self.global_access)
        self.generic = GenericAccess(self)
        self.printer = Printer(self)
        self.ticks = 0
        self.copies = AsyncCopies(self)
        self.matrix = MatrixUnit(self)
        self.warp = WarpUnit(self)
        self.mbarriers = MBarriers(self)
        self.bulk_groups = BulkGroups(self)
        self.bulk_copies = BulkCopies(self)
        self.tma = Tma(self)
        self.wgmma = Wgmma(self)
        self.wmma = Wmma(self)
        self.named_barriers = NamedBarriers(self)
        self.register_pool = RegisterPool(self)

        self.written = WrittenRegisters(self)
        self.registers = [np.zeros(self.num_lanes, t) for t in program.slot_types]
        self.constants = geometry.constants
        self._take_arguments(self._parameter_block(args), memory)
        self.inputs |= geometry.special_registers

    def _take_geometry(self, geometry: Geometry) -> None:
        self.clusters = geometry.clusters
        self.num_ctas = geometry.num_ctas
        self.warps_per_cta = geometry.warps_per_cta
        self.num_warps = geometry.num_warps
        self.shared_limit = geometry.shared_limit
        self.shared_stride = geometry.shared_stride
        self.shared_bytes = prod(self.grid) * self.shared_stride
        self.lanes = geometry.lanes
        self.num_lanes = self.lanes.count

    def _take_arguments(self, block: bytes, memory: GlobalMemory) -> None:
        """Place the parameters, and bind what is known before the first instruction."""
        if self.checks:
            self.global_access.owners = global_owners(self.program, memory, block)
        self.parameters = PrivateMemory(self, "param", PARAM_BASE, len(block), block)
        self.inputs = self._parameters(block) | self._module_variables(memory)

    def read_timer(self, s: Selection, shift: int) -> Any:
        """A clock that goes on at every look at it; the emulator measures no time."""
        self.ticks += TICK
        return np.full(s.count, self.ticks >> shift, np.uint64)

    def trap(self, s: Selection, mask: Bools | None, pc: int) -> None:
        """A trap ends the launch, as on the hardware."""
        if mask is None or mask.any():
            part = self.lanes.part(s, mask)
            instruction = self.program.kernel.instructions[pc]
            cta = self.clusters.cta(part.cta[0], part.warp[0])
            warp = self.clusters.warp(part.warp[0])
            raise EmulatorError(
                f"PTX line {instruction.ptx_line}: trap in CTA {cta} warp {warp}"
                f" lane {part.lane[0]}"
            )

    def report_text(self) -> None:
        """Mistakes with waits and the registers of a wgmma, which follow from the text alone."""
        report = self.findings.report
        for pc in self.program.untested:
            detail = "the wait may end before the phase does, and nothing looks at its result"
            report("mbarrier-untested", detail, pc, None, None, None)
        for pc, register, wgmma_pc in self.program.in_flight:
            detail = f"{register} belongs to a wgmma that is not waited for"
            report("wgmma-in-flight", detail, pc, None, None, None, wgmma_pc)
        for missing in self.program.unfenced:
            detail = "wgmma.mma_async comes before any wgmma.fence"
            if missing.register is not None:
                detail = f"{missing.register} is used by another instruction, and no wgmma.fence"
                detail += " stands between that and the wgmma"
            report("wgmma-unfenced", detail, missing.index, None, None, None, missing.accessed)

    def _module_variables(self, memory: GlobalMemory) -> dict[Any, Any]:
        return {
            ("symbol", variable.name): np.full(self.num_lanes, memory.variable(variable), np.uint64)
            for variable in self.program.kernel.module
        }

    def _parameter_block(self, args: Sequence[Argument]) -> bytes:
        params = self.program.kernel.params
        if len(args) != len(params):
            raise EmulatorError(
                f"{self.program.kernel.name} takes {len(params)} arguments, {len(args)} were given"
            )
        block = bytearray(self.program.param_bytes)
        for param, given in zip(params, args, strict=True):
            if isinstance(given, TensorMap):
                self.tensor_maps[PARAM_BASE + param.offset] = given
                continue
            if isinstance(given, (bytes, ctypes.Structure)):
                data = bytes(given)
            else:
                data = np.array(given).astype(numpy_type(param.type)).tobytes()
            if len(data) != param.size:
                raise EmulatorError(f"{param.name} has {param.size} bytes, {len(data)} were given")
            block[param.offset : param.offset + param.size] = data
        return bytes(block)

    def _parameters(self, block: bytes) -> dict[Any, Any]:
        return {
            ("param", type_name, offset): np.full(
                self.num_lanes, np.frombuffer(block, numpy_type(type_name), 1, offset)[0]
            )
            for type_name, offset in self.program.param_reads
        }
