# SPDX-License-Identifier: Apache-2.0
"""The machine a program runs on: lanes, registers, and one component a kind of hardware."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from flash_attention.emulator.errors import EmulatorError
from flash_attention.emulator.machine.barriers import NamedBarriers
from flash_attention.emulator.machine.bulk_copies import BulkCopies
from flash_attention.emulator.machine.bulk_groups import BulkGroups
from flash_attention.emulator.machine.clocks import Clocks
from flash_attention.emulator.machine.copies import AsyncCopies
from flash_attention.emulator.machine.counters import Counters
from flash_attention.emulator.machine.findings import Findings
from flash_attention.emulator.machine.global_memory import GlobalAccess, GlobalMemory
from flash_attention.emulator.machine.lanes import (
    PARAM_BASE,
    WARP_SIZE,
    Bools,
    Lanes,
    Selection,
)
from flash_attention.emulator.machine.matrix import MatrixUnit
from flash_attention.emulator.machine.mbarriers import MBarriers
from flash_attention.emulator.machine.shared import SharedMemory
from flash_attention.emulator.machine.tensor_map import TensorMap
from flash_attention.emulator.machine.tma import Tma
from flash_attention.emulator.machine.warp import WarpUnit
from flash_attention.emulator.machine.wgmma import Wgmma
from flash_attention.emulator.program.program import Program
from flash_attention.emulator.types import SPECIAL_REGISTERS, numpy_type

Argument = int | float | bytes | ctypes.Structure | TensorMap

SHARED_GRANULE = 1024  # CTAs' shared memories start at multiples of the widest swizzle atom


class Machine:
    """One launch: `program` over a grid, with its arguments and its memory."""

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        grid: tuple[int, int, int],
        block: int,
        args: Sequence[Argument],
        dynamic_smem: int,
        checks: bool,
    ) -> None:
        if block % WARP_SIZE:
            raise EmulatorError(f"{block} threads are no whole number of warps")
        self.program = program
        self.grid = grid
        self.block = block
        self.checks = checks
        self.num_ctas = grid[0] * grid[1] * grid[2]
        self.warps_per_cta = block // WARP_SIZE
        self.num_warps = self.num_ctas * self.warps_per_cta
        self.shared_limit = program.static_smem + dynamic_smem
        self.shared_stride = -(-self.shared_limit // SHARED_GRANULE) * SHARED_GRANULE
        self.lanes = Lanes(self.num_ctas, self.warps_per_cta, self.shared_stride)
        self.num_lanes = self.lanes.count
        self.tensor_maps: dict[int, TensorMap] = {}

        self.findings = Findings(program)
        self.counters = Counters(program)
        self.clocks = Clocks(self)
        self.shared = SharedMemory(self)
        self.global_access = GlobalAccess(self, memory)
        self.copies = AsyncCopies(self)
        self.matrix = MatrixUnit(self)
        self.warp = WarpUnit(self)
        self.mbarriers = MBarriers(self)
        self.bulk_groups = BulkGroups(self)
        self.bulk_copies = BulkCopies(self)
        self.tma = Tma(self)
        self.wgmma = Wgmma(self)
        self.named_barriers = NamedBarriers(self)

        self.registers = [np.zeros(self.num_lanes, t) for t in program.slot_types]
        self.constants = [np.full(self.num_lanes, value) for value in program.constant_arrays]
        self.inputs = self._special_registers() | self._parameters(args)

    def trap(self, s: Selection, mask: Bools | None, pc: int) -> None:
        """A trap ends the launch, as on the hardware."""
        if mask is None or mask.any():
            part = self.lanes.part(s, mask)
            instruction = self.program.kernel.instructions[pc]
            raise EmulatorError(
                f"PTX line {instruction.ptx_line}: trap in CTA {part.cta[0]} warp {part.warp[0]}"
                f" lane {part.lane[0]}"
            )

    def report_registers(self) -> None:
        """Mistakes with the registers of a wgmma, which follow from the text alone."""
        report = self.findings.report
        for pc, register, wgmma_pc in self.program.in_flight:
            detail = f"{register} belongs to a wgmma that is not waited for"
            report("wgmma-in-flight", detail, pc, None, None, None, wgmma_pc)
        for missing in self.program.unfenced:
            detail = "wgmma.mma_async comes before any wgmma.fence"
            if missing.register is not None:
                detail = f"{missing.register} is used by another instruction, and no wgmma.fence"
                detail += " stands between that and the wgmma"
            report("wgmma-unfenced", detail, missing.index, None, None, None, missing.accessed)

    def _special_registers(self) -> dict[Any, Any]:
        lanes, (x, y, _) = self.lanes, self.grid
        values = dict.fromkeys(SPECIAL_REGISTERS, 0) | {
            "tid.x": lanes.warp * WARP_SIZE + lanes.lane,
            "ctaid.x": lanes.cta % x,
            "ctaid.y": lanes.cta // x % y,
            "ctaid.z": lanes.cta // (x * y),
            "laneid": lanes.lane,
            "warpid": lanes.warp,
            "ntid.x": self.block,
            **{f"nctaid.{axis}": size for axis, size in zip("xyz", self.grid, strict=True)},
            **dict.fromkeys(("ntid.y", "ntid.z", "cluster_nctarank"), 1),
            **dict.fromkeys(("cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z"), 1),
        }
        return {
            name: np.broadcast_to(np.asarray(value, np.uint32), self.num_lanes).copy()
            for name, value in values.items()
        }

    def _parameters(self, args: Sequence[Argument]) -> dict[Any, Any]:
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
        return {
            ("param", type_name, offset): np.full(
                self.num_lanes,
                np.frombuffer(bytes(block), numpy_type(type_name), 1, offset)[0],
            )
            for type_name, offset in self.program.param_reads
        }
