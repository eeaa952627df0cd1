# SPDX-License-Identifier: Apache-2.0
"""Barriers of a CTA and of a warp: bar, barrier."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse, type_of
from ptx_emulator.emit.warp import check_members
from ptx_emulator.ptx.model import Imm, Instruction

NUMBERS = 16
MODES = {"sync", "arrive", "warp", "cta", "aligned", "red", "popc", "and", "or", "pred", "u32"}


@emits("bar", "barrier")
def barrier(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """bar.sync ends its block and returns (barrier numbers, thread counts); 0: all of the CTA."""
    parts = set(instruction.parts[1:])
    if "cluster" in parts:
        _of_the_cluster(emitter, instruction, predicate)
        return
    if "voted" in parts:
        _take_result(emitter, instruction)
        return
    if not parts <= MODES or predicate is not None:
        raise refuse(instruction)
    if "warp" in parts:
        if emitter.block.terminator == "warp_barrier":
            emitter.result = emitter.array(instruction.operands[0], "u32")
            return
        check_members(emitter, instruction.operands[0], predicate)
        emitter.line("m.clocks.sync_warp(s)")
        return
    operands = list(instruction.operands)
    if isinstance(operands[0], Imm) and operands[0].bits >= NUMBERS:
        raise refuse(instruction, f"a CTA has the barriers 0 to {NUMBERS - 1}")
    number = emitter.array(operands[0], "u32")
    if "red" in parts:
        *operands, vote = operands
        emitter.line(f"m.named_barriers.vote(s, {number}, {emitter.read(vote, 'b1')})")
    count = emitter.array(operands[1] if len(operands) > 1 else Imm(0, "int"), "u32")
    if "arrive" in parts:
        emitter.line(f"m.named_barriers.arrive(s, {number}, {count})")
    else:
        emitter.result = f"({number}, {count})"


def _of_the_cluster(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """barrier.cluster: the wait ends its block."""
    kind, *modifiers = instruction.parts[2:]
    if predicate is not None or not set(modifiers) <= {"release", "acquire", "relaxed", "aligned"}:
        raise refuse(instruction)
    if kind == "arrive":
        emitter.line(f"m.named_barriers.cluster.arrive(s, {'relaxed' not in modifiers})")
    elif kind != "wait":
        raise refuse(instruction)


def _take_result(emitter: Emitter, instruction: Instruction) -> None:
    """What the threads that met at the barrier before voted."""
    destination, number = instruction.operands
    mode, storage = instruction.parts[2], type_of(instruction)
    result = f"m.named_barriers.voted(s, {emitter.array(number, 'u32')}, {mode!r})"
    emitter.write(destination, result, storage)
