# SPDX-License-Identifier: Apache-2.0
"""Instructions that are written as simpler ones: parameters of calls, votes at barriers, tables."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from ptx_emulator.ptx.model import (
    Imm,
    Instruction,
    Label,
    Memory,
    Operand,
    Pair,
    Reg,
    Symbol,
    Vector,
)

CARRY = Reg("%carry")
CACHE_HINT = "L2::cache_hint"


def lowered(
    instruction: Instruction, call_params: Set[str], structures: Set[str]
) -> list[Instruction]:
    """The instructions that stand for one; mostly it is itself."""
    parts = instruction.parts
    if parts[0] == "call":
        return [_call(instruction)]
    if parts[0] in ("bar", "barrier") and "red" in parts:
        return _vote(instruction)
    if CACHE_HINT in parts:  # which changes no result
        parts = tuple(part for part in parts if part != CACHE_HINT)
        instruction = replace(instruction, parts=parts, operands=instruction.operands[:-1])
    if uses_carry(instruction):
        return [_with_carry(instruction)]
    if "param" in (part.split("::")[0] for part in parts[1:2]):
        moved = _parameter_move(instruction, call_params)
        return [moved or _in_local_memory(instruction, structures)]
    return [instruction]


def _call(instruction: Instruction) -> Instruction:
    """Results, function and arguments, the first and the last being brace lists."""
    operands = instruction.operands
    if not operands or not isinstance(operands[0], Vector):
        operands = (Vector(()), *operands)
    return replace(instruction, operands=(*operands, Vector(()))[:3])


def uses_carry(instruction: Instruction) -> bool:
    """Whether an instruction reads or writes the carry flag."""
    return instruction.parts[0] in ("addc", "subc", "madc") or "cc" in instruction.parts[1:]


def _with_carry(instruction: Instruction) -> Instruction:
    """The carry flag as a register beside the result, and as the last operand."""
    name, *rest = instruction.parts
    destination, *sources = instruction.operands
    if "cc" in rest:
        destination = Pair(destination, CARRY)
    comes_in = CARRY if name in ("addc", "subc", "madc") else Imm(0, "int")
    return replace(
        instruction,
        parts=("carry", name[:3], *(part for part in rest if part != "cc")),
        operands=(destination, *sources, comes_in),
    )


def _vote(instruction: Instruction) -> list[Instruction]:
    """bar.red: threads give their predicates, wait, and take the result behind the barrier."""
    destination, number, *rest = instruction.operands
    vote = replace(instruction, operands=(number, *rest))
    parts = ("bar", "voted", *instruction.parts[instruction.parts.index("red") + 1 :])
    result = replace(instruction, opcode=".".join(parts), parts=parts)
    return [vote, replace(result, operands=(destination, number))]


def _parameter_move(instruction: Instruction, call_params: Set[str]) -> Instruction | None:
    """A store to an argument of a call, or a load of its result: each of them is a register."""
    memory, value = instruction.operands[:2]
    if instruction.parts[0] == "ld":
        memory, value = value, memory
    if not isinstance(memory, Memory) or not isinstance(memory.base, Reg):
        return None
    if memory.base.name not in call_params or memory.offset or isinstance(value, Vector):
        return None
    parts = ("mov", instruction.parts[-1])
    ends = (memory.base, value) if instruction.parts[0] == "st" else (value, memory.base)
    return replace(instruction, opcode=".".join(parts), parts=parts, operands=ends)


def _in_local_memory(instruction: Instruction, structures: Set[str]) -> Instruction:
    """An access to a structure that a call takes or returns; what is none stays as it is."""
    for operand in instruction.operands:
        base = operand.base if isinstance(operand, Memory) else None
        if isinstance(base, Symbol) and base.name in structures:
            parts = (instruction.parts[0], "local", *instruction.parts[2:])
            return replace(instruction, opcode=".".join(parts), parts=parts)
    return instruction


def branch_table(
    instruction: Instruction, index: Operand, chosen: Reg, targets: Sequence[str]
) -> list[Instruction]:
    """brx.idx: comparisons with every index but the last, each before its branch."""
    found: list[Instruction] = []
    compare, jump = ("setp", "eq", "u32"), ("bra",)
    for position, target in enumerate(targets[:-1]):
        found.append(
            replace(
                instruction,
                opcode=".".join(compare),
                parts=compare,
                operands=(chosen, index, Imm(position, "int")),
            )
        )
        taken = replace(instruction, opcode="bra", parts=jump, operands=(Label(target),))
        found.append(replace(taken, predicate=chosen, negated=False))
    last = replace(instruction, opcode="bra", parts=jump, operands=(Label(targets[-1]),))
    return [*found, last]
