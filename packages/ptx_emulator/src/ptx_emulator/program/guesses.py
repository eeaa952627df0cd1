# SPDX-License-Identifier: Apache-2.0
"""Loads whose value is a guess: an atomic compares it with what is there, and writes only then.

A loop around atomicCAS may begin with an ordinary load. Whatever it loads, the result is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptx_emulator.ptx.model import Instruction, Kernel, Memory, Operand, Reg, Symbol


def guesses(instructions: Sequence[Instruction]) -> list[int]:
    """Which instructions are such loads."""
    compared = [found for found in map(_compared, instructions) if found is not None]
    if not compared:
        return []
    variables = _variables(instructions)
    wanted = {
        (_place(memory, variables), register)
        for memory, name in compared
        for register in _copied_to(name, instructions)
    }
    loads = ((pc, _loaded(instruction)) for pc, instruction in enumerate(instructions))
    return [
        pc
        for pc, found in loads
        if found is not None and (_place(found[0], variables), found[1]) in wanted
    ]


def with_volatile(kernel: Kernel, places: Sequence[int]) -> Kernel:
    """The kernel with the loads at these places as those that may meet atomics without order."""
    instructions = list(kernel.instructions)
    for place in places:
        name, *rest = instructions[place].parts
        instructions[place] = replace(instructions[place], parts=(name, "volatile", *rest))
    return replace(kernel, instructions=tuple(instructions))


def _compared(instruction: Instruction) -> tuple[Memory, str] | None:
    """Where an atomic compares, and the register that it compares with."""
    match instruction.operands:
        case (_, Memory() as memory, Reg(name), _) if "cas" in instruction.parts:
            return memory, name
    return None


def _loaded(instruction: Instruction) -> tuple[Memory, str] | None:
    """Where a load of one register reads that may be stored to, and the register."""
    match instruction.operands:
        case (Reg(name), Memory() as memory) if (
            instruction.parts[0] == "ld" and "nc" not in instruction.parts
        ):
            return memory, name
    return None


def _variables(instructions: Sequence[Instruction]) -> dict[Operand, Operand]:
    """The registers that hold addresses of variables."""
    found: dict[Operand, Operand] = {}
    for instruction in instructions:
        match instruction.operands:
            case (Reg() as register, Symbol() as variable) if instruction.parts[0] == "mov":
                found[register] = variable
    return found


def _place(memory: Memory, variables: dict[Operand, Operand]) -> tuple[Operand, int]:
    return variables.get(memory.base, memory.base), memory.offset


def _copied_to(register: str, instructions: Sequence[Instruction]) -> set[str]:
    """The register, and those that are copied to it."""
    found, before = {register}, 0
    while len(found) > before:
        before = len(found)
        for instruction in instructions:
            match instruction.operands:
                case (Reg(copy), Reg(source)) if instruction.parts[0] == "mov" and copy in found:
                    found.add(source)
    return found
