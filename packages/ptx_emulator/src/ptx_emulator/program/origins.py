# SPDX-License-Identifier: Apache-2.0
"""Where addresses come from: the variables and the parameters that they are sums of.

An address that comes from one array and one array alone has to stay inside of it. Which parameters
are pointers only the launch knows; a stride is a parameter too. The arrays of a thread are parts of
one local variable, the stack: compilers add a constant to its address where an array begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ptx_emulator.program.blocks import written_by
from ptx_emulator.ptx.model import Imm, Instruction, Kernel, Memory, Operand, Reg, Symbol
from ptx_emulator.types import STORAGE, STORAGE_OF_PTX

POINTERS = {"u64", "b64", "s64"}
COPIES = {"mov", "cvta", "cvt", "add", "and", "or", "selp", "min", "max"}
ACCESSES = {"ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix"}
SPACES = ("shared", "global", "local")
STACK = "__local_depot"  # what compilers call the variable of all local arrays
INTEGERS = {"mul", "shl", "shr", "div", "rem", "setp", "bfe", "popc", "clz"}


@dataclass(frozen=True)
class Origin:
    """A shared or local variable by its name, an array of the stack by its first byte too, a
    parameter by its offset, or a value that nothing is known of."""

    variable: str | None = None
    parameter: int | None = None
    part: int | None = None


UNKNOWN = Origin()
Origins = frozenset[Origin]
NOTHING: Origins = frozenset()


def origins_of_addresses(kernel: Kernel) -> dict[tuple[str, int], Origins]:
    """By space and instruction, what the address of an access comes from."""
    known = _Registers(kernel)
    found: dict[tuple[str, int], Origins] = {}
    for pc, instruction in enumerate(kernel.instructions):
        for space, memory in _accesses(instruction):
            origins = known.of(memory.base)
            if origins and UNKNOWN not in origins:
                found[space, pc] = origins
    return found


class _Registers:
    """What the values of registers come from, whatever instruction wrote them."""

    def __init__(self, kernel: Kernel) -> None:
        self._variables = {variable.name for variable in (*kernel.shared, *kernel.local)}
        self._params = {param.name: param.offset for param in kernel.params}
        self._origins: dict[str, Origins] = {}
        written = [
            (register, index, instruction)
            for instruction in kernel.instructions
            if instruction.parts[0] not in INTEGERS
            for index, register in enumerate(written_by(instruction))
            if kernel.registers[register] not in ("f32", "f64", "pred")
        ]
        changed = True
        while changed:
            changed = False
            for register, index, instruction in written:
                before = self._origins.get(register, NOTHING)
                after = before | self._result(instruction, index)
                if after != before:
                    self._origins[register] = after
                    changed = True

    def of(self, operand: Operand) -> Origins:
        if isinstance(operand, Reg):
            return self._origins.get(operand.name, NOTHING)
        if isinstance(operand, Symbol):
            known = operand.name in self._variables
            return frozenset({Origin(variable=operand.name) if known else UNKNOWN})
        return NOTHING

    def _result(self, instruction: Instruction, index: int) -> Origins:
        """Of register number `index` that an instruction writes."""
        opcode, sources = instruction.parts[0], instruction.operands[1:]
        if opcode == "ld":
            return self._loaded(instruction, index)
        if opcode == "add" and isinstance(sources[1], Imm):
            return self._parts(self.of(sources[0]), sources[1].bits)
        if opcode in COPIES:
            return self._all(sources)
        if opcode == "sub":
            return self.of(sources[0])
        if opcode == "mad":
            return self.of(sources[2])
        if opcode in ("atom", "shfl"):
            return frozenset({UNKNOWN})
        return frozenset({UNKNOWN}) if self._all(sources) else NOTHING

    def _parts(self, origins: Origins, first: int) -> Origins:
        """Of a sum with a constant: arrays of the stack, where nothing was added before."""
        return frozenset(
            replace(origin, part=first)
            if (origin.variable or "").startswith(STACK) and origin.part is None
            else origin
            for origin in origins
        )

    def _all(self, operands: Iterable[Operand]) -> Origins:
        return NOTHING.union(*(self.of(operand) for operand in operands))

    def _loaded(self, instruction: Instruction, index: int) -> Origins:
        memory, kind = instruction.operands[1], instruction.parts[-1]
        if "param" not in instruction.parts or not isinstance(memory, Memory):
            return frozenset({UNKNOWN})
        if kind not in POINTERS:
            return NOTHING
        base = self._params.get(memory.base.name) if isinstance(memory.base, Symbol) else None
        if base is None:
            return frozenset({UNKNOWN})
        size = STORAGE[STORAGE_OF_PTX[kind]]().itemsize
        return frozenset({Origin(parameter=base + memory.offset + index * size)})


def _accesses(instruction: Instruction) -> Iterator[tuple[str, Memory]]:
    """The memory operands of an access, with the space of each."""
    if instruction.parts[0] not in ACCESSES or "bulk" in instruction.parts:
        return
    spaces = [p.split("::")[0] for p in instruction.parts if p.split("::")[0] in SPACES]
    operands = [operand for operand in instruction.operands if isinstance(operand, Memory)]
    yield from zip(spaces, operands, strict=False)
