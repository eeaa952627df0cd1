# SPDX-License-Identifier: Apache-2.0
"""A kernel made ready to run: parsed, cut into blocks, compiled to Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ptx_emulator.emit import BlockEmitter
from ptx_emulator.errors import EmulatorError, RefusedKernelError
from ptx_emulator.machine import clusters, integers, numerics
from ptx_emulator.machine.lanes import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from ptx_emulator.program.blocks import (
    Block,
    build_blocks,
    written_by,
)
from ptx_emulator.program.hooks import Hooks
from ptx_emulator.program.inflight import registers_in_flight
from ptx_emulator.program.loops import loop_nests
from ptx_emulator.program.meetings import meets_at_barriers
from ptx_emulator.program.order import priorities
from ptx_emulator.program.ordering import (
    Ordering,
    copies_meet_flags,
    ctas_exchange,
    has_fences,
    moves_in_bulk,
    ordering_of,
)
from ptx_emulator.program.origins import origins_of_addresses
from ptx_emulator.program.registers import registers_at_launch
from ptx_emulator.program.runs import Run, runs_of
from ptx_emulator.program.unfenced import unfenced_products
from ptx_emulator.program.unwritten import doubtful_registers
from ptx_emulator.program.waiting import untested_waits, waiting_loops
from ptx_emulator.ptx.model import (
    Imm,
    Instruction,
    Kernel,
    Operand,
    Reg,
    Symbol,
    Variable,
)
from ptx_emulator.ptx.parse import parse
from ptx_emulator.types import STORAGE, STORAGE_OF_PTX, scalar

BlockFunction = Callable[..., Any]


class Layout:
    """Where things are: registers that cross blocks, constants, symbols, parameters."""

    def __init__(self, kernel: Kernel, blocks: list[Block], hooks: Hooks) -> None:
        self.kernel = kernel
        self.hooks = hooks
        live = sorted({register for block in blocks for register in block.live_in})
        self.slots = {register: slot for slot, register in enumerate(live)}
        self.param_reads: set[tuple[str, int]] = set()
        self.special_registers: set[str] = set()
        self.scalars: dict[str, Any] = {}
        self._constants: dict[tuple[str, int], int] = {}
        self._runs: dict[int, list[Run]] = {}
        self.used = {
            name for block in blocks for _, uses in block.effects for name in uses
        }  # registers whose value somebody looks at
        self.module = {variable.name for variable in kernel.module}
        self._symbols, self.static_smem = _addresses(kernel.shared, SHARED_BASE)
        local, self.local_bytes = _addresses(kernel.local, LOCAL_BASE)
        self._symbols |= local
        self._symbols |= {param.name: PARAM_BASE + param.offset for param in kernel.params}
        self._param_registers = _params_in_registers(kernel)

    def runs(self, block: Block) -> list[Run]:
        """What of a block runs as one."""
        known = self._runs.get(block.index)
        if known is None:
            known = self._runs[block.index] = runs_of(block)
        return known

    def symbol_address(self, name: str) -> int:
        if name not in self._symbols:
            raise EmulatorError(f"{self.kernel.name} names {name}, which is no variable")
        return self._symbols[name]

    def param_offset(self, base: Operand) -> int | None:
        """Offset in the parameter block of a base that is known when the kernel is loaded."""
        if isinstance(base, Symbol):
            return self.symbol_address(base.name) - PARAM_BASE
        return self._param_registers.get(base.name) if isinstance(base, Reg) else None

    def constant_slot(self, storage: str, bits: int) -> int:
        return self._constants.setdefault((storage, bits), len(self._constants))

    def column(self, storage: str, values: Sequence[int]) -> str:
        """The name of an array with one value a row."""
        name = f"column_{storage}_" + "_".join(map(str, values))
        self.scalars[name] = np.array(values, STORAGE[storage])[:, None]
        return name

    def scalar_name(self, storage: str, bits: int) -> str:
        name = f"{storage}_{bits:x}" if bits >= 0 else f"{storage}_minus_{-bits:x}"
        self.scalars[name] = scalar(storage, bits)
        return name

    @property
    def constant_arrays(self) -> list[Any]:
        return [scalar(storage, bits) for storage, bits in self._constants]


def _params_in_registers(kernel: Kernel) -> dict[str, int]:
    """Registers whose only value is an address in the parameter block, as an offset there."""
    written: dict[str, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for register in written_by(instruction):
            written.setdefault(register, []).append(instruction)
    params = {param.name: param.offset for param in kernel.params}

    def offset_in(source: Operand) -> int | None:
        if isinstance(source, Symbol):
            return params.get(source.name)
        writes = written.get(source.name, []) if isinstance(source, Reg) else []
        if len(writes) != 1 or writes[0].predicate is not None:
            return None
        parts, operands = writes[0].parts, writes[0].operands
        if parts[0] in ("mov", "cvta"):
            return offset_in(operands[1])
        if parts[0] == "add" and isinstance(operands[2], Imm):
            base = offset_in(operands[1])
            return None if base is None else base + operands[2].bits
        return None

    offsets = {register: offset_in(Reg(register)) for register in written}
    return {register: offset for register, offset in offsets.items() if offset is not None}


def _addresses(variables: Sequence[Variable], base: int) -> tuple[dict[str, int], int]:
    """Place the static variables one after the other, and the dynamic one after them."""
    addresses, end = {}, 0
    for variable in sorted(variables, key=lambda v: v.size is None):
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = base + end
        end += variable.size or 0
    return addresses, end


class Program:
    """A kernel, translated to a Python function per basic block."""

    def __init__(self, kernel: Kernel, hooks: Hooks | None = None) -> None:
        self.kernel = kernel
        self.blocks = build_blocks(kernel)
        self.priorities = priorities(self.blocks)
        self.loop_nests = loop_nests(self.blocks)
        self.waiting_loops = waiting_loops(self.blocks, self.loop_nests)
        self.in_flight = registers_in_flight(kernel, self.blocks)
        self.unfenced = unfenced_products(kernel, self.blocks)
        self.untested = untested_waits(self.blocks)
        self.doubts = doubtful_registers(self.blocks)
        self.origins = origins_of_addresses(kernel)
        layout = self._layout = Layout(kernel, self.blocks, hooks or Hooks())
        # What is not emulated is refused here; the text for some lanes differs in no instruction.
        emitters = [BlockEmitter(layout, block, all_lanes=True) for block in self.blocks]
        self._texts = [emitter.source() for emitter in emitters]
        refusals = [refusal for emitter in emitters for refusal in emitter.refusals]
        refusals.sort(key=lambda refusal: refusal.line or 0)
        if refusals:
            raise RefusedKernelError(kernel.name, refusals)
        self.symbol_address = layout.symbol_address
        self.static_smem = layout.static_smem
        self.local_bytes = layout.local_bytes
        self.shared_addresses = {v.name: layout.symbol_address(v.name) for v in kernel.shared}
        self.slot_types = [
            STORAGE[STORAGE_OF_PTX[kernel.registers[register]]] for register in layout.slots
        ]
        self.constant_arrays = layout.constant_arrays
        self.param_reads = sorted(layout.param_reads)
        self.param_bytes = max((p.offset + p.size for p in kernel.params), default=0)
        self.ctas_exchange = ctas_exchange(kernel.instructions)
        self.copies_meet_flags = copies_meet_flags(kernel.instructions)
        self.has_fences = has_fences(kernel.instructions)
        self.special_registers = sorted(layout.special_registers)
        self.uses_wgmma = any(i.parts[0] == "wgmma" for i in kernel.instructions)
        self._namespace: dict[str, Any] = {
            "np": np,
            "numerics": numerics,
            "integers": integers,
            "clusters": clusters,
            **layout.scalars,
        }
        self._functions: dict[tuple[int, bool], BlockFunction] = {}

    def live_slots(self, index: int) -> list[int]:
        """The registers whose values at the start of a block matter."""
        return [self._layout.slots[name] for name in sorted(self.blocks[index].live_in)]

    @cached_property
    def orderings(self) -> dict[int, Ordering]:
        """What accesses by threads say of their order, by instruction."""
        accesses = ("ld", "st", "atom", "red")
        return {
            pc: ordering_of(instruction)
            for pc, instruction in enumerate(self.kernel.instructions)
            if instruction.parts[0] in accesses
        }

    @cached_property
    def pointers(self) -> list[tuple[int, tuple[int, ...]]]:
        """The accesses to global memory, with the parameters that their addresses come from."""
        return [
            (pc, tuple(o.parameter for o in origins if o.parameter is not None))
            for (space, pc), origins in self.origins.items()
            if space == "global"
        ]

    @cached_property
    def bulk_copies(self) -> list[int]:
        """The instructions by which copy engines access global memory."""
        return [pc for pc, i in enumerate(self.kernel.instructions) if moves_in_bulk(i)]

    @cached_property
    def atomics(self) -> list[int]:
        """The instructions that are atomics."""
        instructions = enumerate(self.kernel.instructions)
        return [pc for pc, i in instructions if i.parts[0] in ("atom", "red")]

    @cached_property
    def global_writes(self) -> list[int]:
        """The stores and atomics that name global memory, or none."""
        elsewhere = {"shared", "local", "param", "const"}
        return [
            pc
            for pc, instruction in enumerate(self.kernel.instructions)
            if instruction.parts[0] in ("st", "atom", "red")
            and elsewhere.isdisjoint(part.split("::")[0] for part in instruction.parts)
        ]

    @cached_property
    def meets_at_barriers(self) -> bool:
        return meets_at_barriers(self.kernel, self.blocks, self._layout.used)

    @cached_property
    def registers_at_launch(self) -> int | None:
        return registers_at_launch(self.kernel)

    def function(self, index: int, all_lanes: bool) -> BlockFunction:
        """The function of a block, for all lanes or for some; most blocks need one of the two."""
        known = self._functions.get((index, all_lanes))
        return known or self._compile(index, all_lanes)

    def _compile(self, index: int, all_lanes: bool) -> BlockFunction:
        emitter = BlockEmitter(self._layout, self.blocks[index], all_lanes=all_lanes)
        text = self._texts[index] if all_lanes else emitter.source()
        exec(compile(text, f"<{self.kernel.name}>", "exec"), self._namespace)
        function: BlockFunction = self._namespace[emitter.function_name]
        self._functions[index, all_lanes] = function
        return function


@lru_cache(maxsize=256)
def load_program(ptx: str, entry: str | None = None) -> Program:
    """The program of a kernel; the same text is parsed and compiled once a process."""
    kernels = parse(ptx)
    if entry is None and len(kernels) == 1:
        (entry,) = kernels
    if entry is None or entry not in kernels:
        raise EmulatorError(f"there is no kernel {entry!r}; the PTX has {', '.join(kernels)}")
    return Program(kernels[entry])
