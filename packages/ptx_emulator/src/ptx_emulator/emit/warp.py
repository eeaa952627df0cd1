# SPDX-License-Identifier: Apache-2.0
"""What the lanes of a warp do together: shfl, vote, redux, elect, activemask."""

from __future__ import annotations

from ptx_emulator.emit.compare import write_pair
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse, type_of
from ptx_emulator.ptx.model import Imm, Instruction, Operand, Pair

ALL = 0xFFFFFFFF


def check_members(emitter: Emitter, members: Operand, predicate: str | None) -> None:
    """Look at a membermask, the usual one only where part of a warp runs."""
    usual = isinstance(members, Imm) and members.bits % (1 << 32) == ALL and predicate is None
    condition = "if not s.whole_warps: " if usual else ""
    mask = emitter.array(members, "u32")
    emitter.line(f"{condition}m.warp.check_members(s, {mask}, {predicate}, {emitter.pc})")


@emits("shfl")
def shuffle(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"sync", "up", "down", "bfly", "idx"})
    destination, source, *rest = instruction.operands
    value = emitter.array(source, "u32")
    lane, clamp = (emitter.array(o, "u32") for o in rest[:2])
    mode = instruction.parts[2]
    check_members(emitter, rest[2], predicate)
    result, inside = emitter.names(2, "u32")
    emitter.line(f"{result}, {inside} = m.warp.shuffle(s, {mode!r}, {value}, {lane}, {clamp})")
    write_pair(emitter, destination, result, "u32", f"{inside}.astype(bool)", predicate)


@emits("vote")
def vote(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"sync", "any", "all", "uni", "ballot"})
    destination, source, members = instruction.operands
    mode = instruction.parts[2]
    check_members(emitter, members, predicate)
    value = emitter.array(source, "b1")
    storage = "u32" if mode == "ballot" else "b1"
    expression = f"m.warp.vote(s, {mode!r}, {value}, {emitter.array(members, 'u32')})"
    emitter.write(destination, expression, storage, predicate)


@emits("redux")
def reduce(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"sync", "add", "min", "max", "and", "or", "xor"})
    storage = type_of(instruction)
    destination, source, members = instruction.operands
    check_members(emitter, members, predicate)
    value = emitter.array(source, storage)
    lanes = emitter.array(members, "u32")
    expression = f"m.warp.reduce(s, {instruction.parts[2]!r}, {value}, {lanes})"
    emitter.write(destination, expression, storage, predicate)


@emits("match")
def match(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    expect_parts(instruction, {"any", "all", "sync"})
    destination, source, members = instruction.operands
    value, lanes = emitter.array(source, type_of(instruction)), emitter.array(members, "u32")
    check_members(emitter, members, predicate)
    alike, agreed = emitter.names(2, "u32")
    emitter.line(f"{alike}, {agreed} = m.warp.match(s, {instruction.parts[1]!r}, {value}, {lanes})")
    write_pair(emitter, destination, alike, "u32", f"{agreed}.astype(bool)", predicate)


@emits("elect")
def elect(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    destination = instruction.operands[0]
    if not isinstance(destination, Pair):
        raise refuse(instruction)
    check_members(emitter, instruction.operands[1], predicate)
    leader, chosen = emitter.names(2, "u32")
    emitter.line(f"{leader}, {chosen} = m.warp.elect(s)")
    write_pair(emitter, destination, leader, "u32", f"{chosen}.astype(bool)", predicate)


@emits("activemask")
def active_mask(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    emitter.write(instruction.operands[0], "m.warp.active_mask(s)", "u32", predicate)
