# SPDX-License-Identifier: Apache-2.0
"""Where a kernel's registers, constants, symbols and parameters are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.lanes import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from ptx_emulator.program.blocks import Block, written_by
from ptx_emulator.program.hooks import Hooks
from ptx_emulator.program.runs import Run, runs_of
from ptx_emulator.ptx.deferred import Deferred
from ptx_emulator.ptx.model import Imm, Instruction, Kernel, Operand, Reg, Symbol, Variable
from ptx_emulator.types import STORAGE, scalar


class Layout(Deferred):
    """Where things are: registers that cross blocks, constants, symbols, parameters."""

    LATER = frozenset(
        {"slots", "used", "_constants", "_runs", "_param_registers", "known_predicates"}
    )

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
        written_once = _written_once(kernel)
        self._param_registers = _params_in_registers(kernel, written_once)
        self.known_predicates = _known_predicates(written_once)

    def runs(self, block: Block) -> list[Run]:
        """What of a block runs as one."""
        known = self._runs.get(block.index)
        if known is None:
            known = self._runs[block.index] = runs_of(block)
        return known

    def symbol_address(self, name: str) -> int:
        if name not in self._symbols:
            raise EmulatorError(
                f"{name} is no variable, and addresses of functions are not emulated"
            )
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


def _written_once(kernel: Kernel) -> dict[str, Instruction]:
    """The registers that one instruction writes, for all lanes."""
    written: dict[str, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for register in written_by(instruction):
            written.setdefault(register, []).append(instruction)
    return {
        register: writes[0]
        for register, writes in written.items()
        if len(writes) == 1 and writes[0].predicate is None
    }


def _known_predicates(written_once: dict[str, Instruction]) -> dict[str, bool]:
    """Predicates that compare constants, as wrappers of wgmma have them."""
    constants = {
        register: instruction.operands[1].bits
        for register, instruction in written_once.items()
        if instruction.parts[0] == "mov" and isinstance(instruction.operands[1], Imm)
    }

    def value(operand: Operand) -> int | None:
        if isinstance(operand, Imm):
            return operand.bits
        return constants.get(operand.name) if isinstance(operand, Reg) else None

    known = {}
    for register, instruction in written_once.items():
        if instruction.parts in (("setp", "eq", "b32"), ("setp", "ne", "b32")):
            left, right = map(value, instruction.operands[1:])
            if left is not None and right is not None:
                known[register] = (left == right) == (instruction.parts[1] == "eq")
    return known


def _params_in_registers(kernel: Kernel, written_once: dict[str, Instruction]) -> dict[str, int]:
    """Registers whose only value is an address in the parameter block, as an offset there."""
    params = {param.name: param.offset for param in kernel.params}
    offsets: dict[str, int] = {}

    def offset_in(source: Operand) -> int | None:
        known = params if isinstance(source, Symbol) else offsets
        return known.get(source.name) if isinstance(source, Symbol | Reg) else None

    found = True
    while found:
        found = False
        for register, instruction in written_once.items():
            offset = _offset_after(instruction, offset_in)
            if offset is not None and register not in offsets:
                offsets[register] = offset
                found = True
    return offsets


def _offset_after(
    instruction: Instruction, offset_in: Callable[[Operand], int | None]
) -> int | None:
    """What an instruction makes of an offset that its operand holds."""
    parts, operands = instruction.parts, instruction.operands
    if parts[0] in ("mov", "cvta"):
        return offset_in(operands[1])
    if parts[0] == "add" and isinstance(operands[2], Imm):
        base = offset_in(operands[1])
        return None if base is None else base + operands[2].bits
    return None


def _addresses(variables: Sequence[Variable], base: int) -> tuple[dict[str, int], int]:
    """Place the static variables one after the other, and the dynamic one after them."""
    addresses, end = {}, 0
    for variable in sorted(variables, key=lambda v: v.size is None):
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = base + end
        end += variable.size or 0
    return addresses, end
