# SPDX-License-Identifier: Apache-2.0
"""Instructions that do the same as one, on arrays with a row for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ptx_emulator.errors import EmulatorError
from ptx_emulator.ptx.model import Instruction, Memory, Operand, Reg
from ptx_emulator.types import size_of

if TYPE_CHECKING:
    from ptx_emulator.emit.block import BlockEmitter


class Rows:
    """Arrays of many rows, and the temporaries that are rows of them."""

    def __init__(self, emitter: BlockEmitter) -> None:
        self._emitter = emitter
        self._places: dict[str, tuple[str, int]] = {}  # of a row: its array, its number
        self._counts: dict[str, int] = {}

    def of(self, array: str, count: int, storage: str) -> list[str]:
        """Names of the rows of an array."""
        self._counts[array] = count
        names = [f"{array}[{row}]" for row in range(count)]
        for row, name in enumerate(names):
            self._places[name] = array, row
            self._emitter.declare(name, storage)
        return names

    def stacked(self, names: Sequence[str]) -> str:
        """An expression for the array whose rows have these names."""
        pieces = self._pieces(names)
        if len(pieces) == 1 and len(names) > 1:
            return pieces[0]
        flat = [piece if piece in names else f"{piece}.reshape(-1)" for piece in pieces]
        return f"np.concatenate(({', '.join(flat)},)).reshape({len(names)}, n)"

    def _pieces(self, names: Sequence[str]) -> list[str]:
        """The names, neighbours in one array together."""
        places = [self._places.get(name) for name in names]
        evenly = self._evenly(places)
        if evenly is not None:
            return [evenly]
        pieces: list[str] = []
        first = 0
        for last, name in enumerate(names):
            here, after = places[last], places[last + 1] if last + 1 < len(names) else None
            if here is not None and after == (here[0], here[1] + 1):
                continue
            start = places[first]
            if last > first and here is not None and start is not None:
                pieces.append(f"{here[0]}[{start[1]}:{here[1] + 1}]")
            else:
                pieces.append(name)
            first = last + 1
        return pieces

    def _evenly(self, places: Sequence[tuple[str, int] | None]) -> str | None:
        """A slice of one array, if the places are one."""
        known = [place for place in places if place is not None]
        arrays = {array for array, _ in known}
        if len(known) != len(places) or len(arrays) != 1 or len(known) < 2:
            return None
        (array,) = arrays
        rows = [row for _, row in known]
        step = rows[1] - rows[0]
        if step < 1 or rows != list(range(rows[0], rows[-1] + 1, step)):
            return None
        if rows == list(range(self._counts[array])):
            return array
        return f"{array}[{rows[0]}:{rows[-1] + 1}:{step}]"


def emit_run(emitter: BlockEmitter, instructions: Sequence[Instruction]) -> bool:
    """Emit arithmetic as one; False where all instructions would compute the same."""
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
    emitter.emit(replace(first, operands=(Reg(result), *sources)))
    name = emitter.current(result)
    bind_rows(emitter, destinations, name, emitter.storage_of(name))
    return True


def _storage(emitter: BlockEmitter, registers: Sequence[Operand]) -> str:
    kinds = {emitter.register_storage(r.name) for r in registers if isinstance(r, Reg)}
    if len(kinds) != 1:
        raise EmulatorError("registers of several types in one place of a run")
    return kinds.pop()


def _stack(emitter: BlockEmitter, column: Sequence[Operand]) -> str:
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


def run_addresses(emitter: BlockEmitter, memories: Sequence[Operand], storage: str) -> str:
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
    emitter: BlockEmitter, registers: Sequence[Operand], expression: str, storage: str
) -> None:
    """Bind registers to the rows of an array, in their order."""
    known = emitter.is_temporary(expression)
    array = expression if known else emitter.temporary(expression, storage)
    rows = emitter.rows.of(array, len(registers), storage)
    for register, row in zip(registers, rows, strict=True):
        if isinstance(register, Reg):
            emitter.products.settle(register.name)
            emitter.bind(register.name, row)
