# SPDX-License-Identifier: Apache-2.0
"""Loops in which threads may wait for others: those that look at memory that others change."""

from __future__ import annotations

from collections.abc import Sequence

from ptx_emulator.program.blocks import Block, written_by
from ptx_emulator.program.ordering import ordering_of
from ptx_emulator.ptx.model import Instruction

PATIENCE = 64  # turns of a loop with other work in it, before its lanes let others run


def waiting_loops(blocks: Sequence[Block], nests: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """By the header of such a loop, the turns that lanes take before they rest."""
    found: dict[int, int] = {}
    for block, nest in zip(blocks, nests, strict=True):
        if nest and any(_looks(block.instructions, opcode) for opcode in ("ld", "atom")):
            found |= {header: 1 if blocks[header].spins else PATIENCE for header in nest}
    return found


def untested_waits(blocks: Sequence[Block]) -> list[int]:
    """The mbarrier.try_wait and test_wait whose result nothing looks at. They may fail, but only a
    look at the result tells."""
    return [
        block.last
        for block in blocks
        if block.terminator == "mbarrier_wait"
        and block.live_out.isdisjoint(written_by(block.instructions[-1]))
    ]


def _looks(instructions: Sequence[Instruction], opcode: str) -> bool:
    return any(
        instruction.parts[0] == opcode and ordering_of(instruction).strong
        for instruction in instructions
    )
