# SPDX-License-Identifier: Apache-2.0
"""The machine a program runs on: lanes, registers, and one component a kind of hardware."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.async_copies.bulk_copies import BulkCopies
from ptx_emulator.machine.async_copies.bulk_groups import BulkGroups
from ptx_emulator.machine.async_copies.copies import AsyncCopies
from ptx_emulator.machine.async_copies.tensor_map import TensorMap
from ptx_emulator.machine.async_copies.tma import Tma
from ptx_emulator.machine.barriers.barriers import NamedBarriers
from ptx_emulator.machine.barriers.mbarriers import MBarriers
from ptx_emulator.machine.barriers.paths import Paths
from ptx_emulator.machine.barriers.register_pool import RegisterPool
from ptx_emulator.machine.barriers.warp_barriers import WarpBarriers
from ptx_emulator.machine.checks.kernel_before import KernelBefore
from ptx_emulator.machine.checks.written import WrittenRegisters
from ptx_emulator.machine.lanes import (
    LOCAL_BASE,
    PARAM_BASE,
    Bools,
    Selection,
)
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.constant import ConstantAccess
from ptx_emulator.machine.memory.generic import GenericAccess
from ptx_emulator.machine.memory.global_access import GlobalAccess
from ptx_emulator.machine.memory.private import PrivateMemory
from ptx_emulator.machine.memory.shared import SharedMemory
from ptx_emulator.machine.memory.textures import TextureUnit
from ptx_emulator.machine.printing import Printer
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.machine.storage.owners import global_owners, local_owners
from ptx_emulator.machine.storage.storage import POISON
from ptx_emulator.machine.tensor_cores.matrix import MatrixUnit
from ptx_emulator.machine.tensor_cores.wgmma import Wgmma
from ptx_emulator.machine.tensor_cores.wmma import Wmma
from ptx_emulator.machine.warp import WarpUnit
from ptx_emulator.program.hooks import Hooks
from ptx_emulator.program.program import Program
from ptx_emulator.types import ENVIRONMENT, numpy_type


class Structure(NamedTuple):
    """The bytes of an argument, and the tensor maps in it by their offsets."""

    data: bytes
    maps: Mapping[int, TensorMap]


Argument = int | float | bytes | ctypes.Structure | TensorMap | Structure

GRID_WORKSPACE = 64  # bytes
TICK = 64  # cycles and nanoseconds from one look at a clock to the next


class Debugger(Protocol):
    """What a run tells; `pc` is the instruction that the lanes of `s` have executed."""

    @property
    def hooks(self) -> Hooks: ...

    def attach(self, machine: Machine) -> None:
        """A launch begins."""

    def look(self, s: Selection, pc: int, address: Any = None, nbytes: int = 0) -> None:
        """Memory may have changed: where lanes accessed it, or by a copy engine."""

    def stop(self, s: Selection, pc: int, registers: Mapping[str, Any]) -> None:
        """A place that a line of the source leads to."""


class Machine(Launch):
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
        shared_fill: np.uint32 = POISON,
    ) -> None:
        super().__init__(program, grid, block, dynamic_smem, checks, cluster)
        self.tensor_maps: dict[int, TensorMap] = dict(memory.tensor_maps)
        parameters = self._parameter_block(args)
        self.kernel_before = KernelBefore(self, memory, starts_early)
        self.shared = shared = SharedMemory(self, shared_fill)
        self.global_access = GlobalAccess(self, memory, self.kernel_before)
        if checks:
            self.global_access.owners = global_owners(program, memory, parameters)
        self.local = PrivateMemory(self, "local", LOCAL_BASE, program.local_bytes)
        if checks and program.local_bytes:
            self.local.owners = local_owners(program)
        self.parameters = PrivateMemory(self, "param", PARAM_BASE, len(parameters), parameters)
        self.constant_access = ConstantAccess(self.global_access)
        self.textures = TextureUnit(self, memory.textures)
        self.generic = GenericAccess(shared, self.local, self.parameters, self.global_access)
        self.printer = Printer(self, self.generic)
        self.copies = AsyncCopies(self, shared, self.global_access)
        self.matrix = MatrixUnit(self, shared)
        self.warp = WarpUnit(self)
        self.mbarriers = MBarriers(self, shared)
        self.bulk_groups = BulkGroups(self, shared)
        engine = shared, self.global_access, self.mbarriers, self.bulk_groups
        self.bulk_copies = BulkCopies(self, *engine)
        self.tma = Tma(self, *engine, self.tensor_maps)
        self.wgmma = Wgmma(self, shared)
        self.wmma = Wmma(self)
        self.paths = Paths(self)
        self.named_barriers = NamedBarriers(self, self.paths)
        self.warp_barriers = WarpBarriers(self, self.paths)
        self.register_pool = RegisterPool(self)

        self.ticks = 0
        self.written = WrittenRegisters(self)
        self.registers = [np.zeros(self.num_lanes, t) for t in program.slot_types]
        self.constants = self.geometry.constants
        self.inputs = self._parameters(parameters) | self._module_variables(memory)
        self.inputs |= self.geometry.special_registers
        self.inputs |= self._grid_workspace(memory)

    def read_timer(self, s: Selection, shift: int) -> Any:
        """A clock that goes on at every look at it; the emulator measures no time."""
        self.ticks += TICK
        return np.full(s.count, self.ticks >> shift, np.uint64)

    def trap(self, s: Selection, mask: Bools | None, pc: int) -> None:
        """A trap or a breakpoint ends the launch, as on the hardware."""
        if mask is None or mask.any():
            part = self.lanes.part(s, mask)
            instruction = self.program.kernel.instructions[pc]
            cta = self.clusters.cta(part.cta[0], part.warp[0])
            warp = self.clusters.warp(part.warp[0])
            raise EmulatorError(
                f"PTX line {instruction.ptx_line}: {instruction.parts[0]} in CTA {cta} warp {warp}"
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

    def _grid_workspace(self, memory: GlobalMemory) -> dict[Any, Any]:
        """The address, in two registers, of the barrier of a grid whose CTAs run at once."""
        if ENVIRONMENT.isdisjoint(self.program.special_registers):
            return {}
        address = memory.alloc(np.zeros(GRID_WORKSPACE, np.uint8), name="the grid's barrier")
        halves = {"envreg1": address >> 32, "envreg2": address & 0xFFFFFFFF}
        return {name: np.full(self.num_lanes, half, np.uint32) for name, half in halves.items()}

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
            if isinstance(given, Structure):
                data = given.data
                start = PARAM_BASE + param.offset
                self.tensor_maps |= {start + at: found for at, found in given.maps.items()}
            elif isinstance(given, (bytes, ctypes.Structure)):
                data = bytes(given)
            elif isinstance(given, int) and param.type == "u64" and 0 <= given < 1 << 64:
                data = given.to_bytes(8, "little")
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
