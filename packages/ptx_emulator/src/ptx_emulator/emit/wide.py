# SPDX-License-Identifier: Apache-2.0
"""Instructions that do the same as one, on arrays with a row for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.errors import EmulatorError
from ptx_emulator.ptx.model import Instruction, Memory, Operand, Reg
from ptx_emulator.types import size_of


def emit_run(
    emitter: Emitter, instructions: Sequence[Instruction], emit: Callable[[Instruction], None]
) -> bool:
    """Emit arithmetic as one; False where all instructions would compute the same.

    `emit` emits an instruction.
    """
    first = instructions[0]
    sources: list[Operand] = []
    wide = False
    for column in zip(*(i.operands[1:] for i in instructions), strict=True):
        alike = all(operand == column[0] for operand in column)
        sources.append(column[0] if alike else Reg(_stack(emitter, column)))
        wide |= not alike
    if not wide:
        return False
    destinations = [i.operands[0] for i in instructions]
    result = emitter.wide_register(_storage(emitter, destinations))
    emit(replace(first, operands=(Reg(result), *sources)))
    name = emitter.current(result)
    bind_rows(emitter, destinations, name, emitter.storage_of(name))
    return True


def _storage(emitter: Emitter, registers: Sequence[Operand]) -> str:
    kinds = {emitter.register_storage(r.name) for r in registers if isinstance(r, Reg)}
    if len(kinds) != 1:
        raise EmulatorError("registers of several types in one place of a run")
    return kinds.pop()


def _stack(emitter: Emitter, column: Sequence[Operand]) -> str:
    """A register that stands for a row of each of many."""
    names = [emitter.current(operand.name) for operand in column if isinstance(operand, Reg)]
    kinds = {emitter.storage_of(name) for name in names}
    if len(kinds) > 1:
        kind = _storage(emitter, column)
        names = [emitter.cast(name, kind) for name in names]
        kinds = {kind}
    (kind,) = kinds
    array = emitter.rows.stacked(names)
    if not emitter.is_temporary(array):
        array = emitter.temporary(array, kind)
    register = emitter.wide_register(_storage(emitter, column))
    emitter.bind(register, array)
    return register


def run_addresses(emitter: Emitter, memories: Sequence[Operand], storage: str) -> str:
    """The addresses of a run, with a row for each instruction."""
    places = [memory for memory in memories if isinstance(memory, Memory)]
    bases = {place.base for place in places}
    if len(places) < len(memories) or not all(isinstance(base, Reg) for base in bases):
        return emitter.rows.stacked([emitter.address(memory, storage) for memory in memories])
    if len(bases) > 1 or len(places) == 1:
        names = [emitter.read(place.base, storage) for place in places]
        array = emitter.rows.stacked(names)
    else:
        array = emitter.read(places[0].base, storage)
    offsets = [place.offset % (1 << 8 * size_of(storage)) for place in places]
    if any(offsets) or len(bases) < len(places):
        array = f"({array} + {emitter.layout.column(storage, offsets)})"
    return array


def bind_rows(
    emitter: Emitter, registers: Sequence[Operand], expression: str, storage: str
) -> None:
    """Bind registers to the rows of an array, in their order."""
    known = emitter.is_temporary(expression)
    array = expression if known else emitter.temporary(expression, storage)
    rows = emitter.rows.of(array, len(registers), storage)
    for register, row in zip(registers, rows, strict=True):
        if isinstance(register, Reg):
            emitter.products.settle(register.name)
            emitter.bind(register.name, row)
