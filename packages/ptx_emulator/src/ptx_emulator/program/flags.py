# SPDX-License-Identifier: Apache-2.0
"""Which strong loads look at a flag: those whose value decides where their threads go next."""

from __future__ import annotations

from collections.abc import Sequence

from ptx_emulator.program.blocks import Block
from ptx_emulator.program.ordering import ordering_of


def flag_reads(blocks: Sequence[Block]) -> list[int]:
    """The strong loads with a value that the branch at the end of their block depends on."""
    return [block.start + place for block in blocks for place in _deciding(block)]


def _deciding(block: Block) -> list[int]:
    last = block.instructions[-1]
    if block.terminator not in ("branch", "branch_return") or last.predicate is None:
        return []
    needed, found = {last.predicate.name}, []
    for place in reversed(range(len(block.instructions) - 1)):
        written, used = block.effects[place]
        instruction = block.instructions[place]
        if not needed.isdisjoint(written):
            needed |= used
            if instruction.parts[0] == "ld" and ordering_of(instruction).strong:
                found.append(place)
    return found
