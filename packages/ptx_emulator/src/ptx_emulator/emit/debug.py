# SPDX-License-Identifier: Apache-2.0
"""Calls of a debugger, behind the instructions that it asked for."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.spaces import COMPONENTS, items_of, space_of
from ptx_emulator.ptx.model import Instruction, Memory, Reg
from ptx_emulator.types import STORAGE_OF_PTX, size_of

_BY_LANES = {"st": 0, "red": 0, "atom": 1}  # which operand is the address
_CHANGES = {*_BY_LANES, "cp", "stmatrix", "wmma"}


def emit_hooks(emitter: Emitter, instruction: Instruction) -> None:
    """Tell a debugger, if there is one, of an instruction that was just emitted."""
    hooks = emitter.layout.hooks
    if hooks.watching and instruction.parts[0] in _CHANGES:
        emitter.line(f"m.debugger.look(s, {emitter.pc}{_where(emitter, instruction)})")
    registers = hooks.stops.get(emitter.pc)
    if registers is not None:
        emitter.products.settle_all()
        shown = ", ".join(
            f"{name!r}: {emitter.read(Reg(name), emitter.register_storage(name))}"
            for name in registers
        )
        emitter.line(f"m.debugger.stop(s, {emitter.pc}, {{{shown}}})")


def _where(emitter: Emitter, instruction: Instruction) -> str:
    """The addresses and the bytes of an access by lanes, as more arguments."""
    place = _BY_LANES.get(instruction.parts[0])
    memory = None if place is None else instruction.operands[place]
    if not isinstance(memory, Memory):
        return ""
    _, width = COMPONENTS[space_of(instruction)]
    count = len(items_of(instruction.operands[1])) if instruction.parts[0] != "atom" else 1
    nbytes = size_of(STORAGE_OF_PTX[instruction.parts[-1]]) * count
    return f", {emitter.address(memory, width)}, {nbytes}"
