# SPDX-License-Identifier: Apache-2.0
"""Registers that may be read before they are written, and where a run has to look at them.

On some paths through the text of a kernel a register is read that nothing has written. Most of
these paths no thread ever takes, so the run decides: it keeps whether each lane has written these
registers. A mov is no read: what it copies is as unwritten as before. Nor is the accumulator of a
wgmma read, which may begin with a product alone. A shuffle takes what one lane has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ptx_emulator.program.blocks import Block, registers_of, written_by
from ptx_emulator.program.dataflow import states_at_entry
from ptx_emulator.ptx.model import Instruction, Reg


@dataclass
class Doubts:
    """What a block reads that may not be written when it begins, and what it writes.

    `writes` gives for a register the one in doubt that it is a copy of, as that was when the block
    began, or None where there is no doubt.
    """

    reads: list[tuple[int, str]] = field(default_factory=list)  # instruction, register
    shuffles: list[tuple[int, str]] = field(default_factory=list)
    writes: dict[str, str | None] = field(default_factory=dict)

    @property
    def registers(self) -> set[str]:
        """Those that are read in doubt."""
        return {register for _, register in (*self.reads, *self.shuffles)}


def doubtful_registers(blocks: Sequence[Block]) -> dict[int, Doubts]:
    """The doubts by block, of registers that are read in doubt and of those they are copies of."""
    if not blocks[0].live_in:
        return {}
    maybe = states_at_entry(blocks, blocks[0].live_in, _unwritten_after, frozenset.union)
    doubts = {
        block.index: _doubts(block, unwritten)
        for block, unwritten in zip(blocks, maybe, strict=True)
        if unwritten is not None
    }
    watched = {register for doubt in doubts.values() for register in doubt.registers}
    before = -1
    while len(watched) > before:
        before = len(watched)
        for doubt in doubts.values():
            watched |= {s for r, s in doubt.writes.items() if r in watched and s is not None}
    for doubt in doubts.values():
        doubt.writes = {r: s for r, s in doubt.writes.items() if r in watched}
    return {index: doubt for index, doubt in doubts.items() if doubt.registers or doubt.writes}


def _unwritten_after(block: Block, unwritten: frozenset[str]) -> frozenset[str]:
    if not unwritten:
        return unwritten
    writes = _doubts(block, unwritten).writes
    copies = {register for register, source in writes.items() if source is not None}
    return unwritten.difference(writes) | copies


def _doubts(block: Block, unwritten: frozenset[str]) -> Doubts:
    doubts = Doubts()
    for index, instruction in enumerate(block.instructions, block.start):
        match instruction.operands:
            case (Reg(copy), Reg(source)) if instruction.parts[0] == "mov":
                original = doubts.writes.get(source, source)
                doubts.writes[copy] = original if original in unwritten else None
                continue
        if instruction.predicate is None:
            for register in _reads(instruction):
                original = doubts.writes.get(register, register)
                if original in unwritten:
                    shuffled = _shuffled(instruction) == register
                    (doubts.shuffles if shuffled else doubts.reads).append((index, original))
        doubts.writes.update(dict.fromkeys(written_by(instruction)))
    return doubts


def _reads(instruction: Instruction) -> set[str]:
    written = 1 if written_by(instruction) else 0
    return {name for operand in instruction.operands[written:] for name in registers_of(operand)}


def _shuffled(instruction: Instruction) -> str | None:
    """The register that a shuffle takes from another lane, and uses for nothing else."""
    match instruction.operands:
        case (_, Reg(name) as value, *rest) if instruction.parts[0] == "shfl" and value not in rest:
            return name
    return None
