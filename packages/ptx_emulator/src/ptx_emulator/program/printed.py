# SPDX-License-Identifier: Apache-2.0
"""What a kernel gives to printf: the types that it stores before the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptx_emulator.program.blocks import Block
from ptx_emulator.ptx.model import Imm, Instruction, Kernel, Memory, Reg, Symbol, Vector
from ptx_emulator.types import STORAGE_OF_PTX, size_of

Given = dict[int, set[str]]  # by offset, the types of what may be there
STACK = ("%SP", "%SPL")


def given_to_printf(kernel: Kernel, blocks: Sequence[Block]) -> dict[int, Given]:
    """By call of vprintf, the arguments: what its block stores, or what the kernel does at all."""
    places = _places_on_stack(kernel.instructions)
    anywhere = _gathered(kernel.instructions, places)
    found: dict[int, Given] = {}
    for block in blocks:
        since = 0
        for at, instruction in enumerate(block.instructions):
            base = _arguments_of(instruction, places)
            if base is None:
                continue
            here = _gathered(block.instructions[since:at], places)
            stored = {**anywhere, **here}
            found[block.start + at] = {to - base: types for to, types in stored.items()}
            since = at + 1
    return found


def _places_on_stack(instructions: Sequence[Instruction]) -> dict[str, int]:
    """The registers that hold addresses of local variables, as offsets from the first one."""
    places = dict.fromkeys(STACK, 0)
    for instruction in instructions:
        match instruction.parts[0], instruction.operands:
            case "add", (Reg(name), Reg(base), Imm(bits, _)) if base in places:
                places[name] = places[base] + bits
            case "mov", (Reg(name), Reg(base)) if base in places and name not in STACK:
                places[name] = places[base]
    return places


def _arguments_of(instruction: Instruction, places: dict[str, int]) -> int | None:
    """Where the arguments of a vprintf are; None of anything else."""
    if instruction.parts[0] != "call" or len(instruction.operands) != 3:
        return None
    _, function, arguments = instruction.operands
    if function != Symbol("vprintf") or not isinstance(arguments, Vector):
        return None
    values = arguments.items[-1]
    return places.get(values.name) if isinstance(values, Reg) else None


def _gathered(instructions: Sequence[Instruction], places: dict[str, int]) -> Given:
    found: Given = {}
    for instruction in instructions:
        for offset, type in _stored(instruction, places):
            found.setdefault(offset, set()).add(type)
    return found


def _stored(instruction: Instruction, places: dict[str, int]) -> Iterator[tuple[int, str]]:
    if instruction.parts[:2] != ("st", "local"):
        return
    memory, source = instruction.operands[:2]
    if isinstance(memory, Memory) and isinstance(memory.base, Reg) and memory.base.name in places:
        type = instruction.parts[-1]
        count = len(source.items) if isinstance(source, Vector) else 1
        for index in range(count):
            size = size_of(STORAGE_OF_PTX[type])
            yield places[memory.base.name] + memory.offset + index * size, type
