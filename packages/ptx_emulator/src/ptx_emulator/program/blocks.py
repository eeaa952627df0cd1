# SPDX-License-Identifier: Apache-2.0
"""Basic blocks of a kernel, how they follow each other, and which registers live between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.program.ordering import STRONG
from ptx_emulator.ptx.deferred import Deferred
from ptx_emulator.ptx.model import (
    Instruction,
    Kernel,
    Label,
    Memory,
    Negated,
    Operand,
    Pair,
    Reg,
    Vector,
)

_WITHOUT_RESULT = ("bra", "cp", "nanosleep", "pmevent", "setmaxnreg")


@dataclass
class Block(Deferred):
    """Instructions that run one after the other, and what comes next.

    `terminator` is one of fall, jump, branch (predicated), return, branch_return (predicated),
    barrier, warp_barrier, cluster_wait, mbarrier_wait and registers (setmaxnreg); `next` is the
    block that follows in the text, `target` the label's.
    """

    LATER = frozenset({"instructions", "live_in", "live_out", "defines"})

    index: int
    start: int
    instructions: tuple[Instruction, ...]
    terminator: str
    next: int | None
    target: int | None
    successors: tuple[int, ...]
    live_in: frozenset[str] = field(default_factory=frozenset)
    live_out: frozenset[str] = field(default_factory=frozenset)
    defines: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def last(self) -> int:
        """The number of its last instruction."""
        return self.start + len(self.instructions) - 1

    @cached_property
    def effects(self) -> list[tuple[set[str], set[str]]]:
        """What every instruction writes, and whose old value matters to it."""
        return [defines_and_uses(instruction) for instruction in self.instructions]

    def forget_effects(self) -> None:
        """Free what only the making of a program asks for, most of what a block takes."""
        vars(self).pop("effects", None)

    @cached_property
    def spins(self) -> bool:
        """Whether it repeats itself, and reads what another CTA may change."""
        return self.target == self.index and any(
            instruction.parts[0] == "ld" and not STRONG.isdisjoint(instruction.parts)
            for instruction in self.instructions
        )


def registers_of(operand: Operand) -> tuple[str, ...]:
    """Names of the registers in an operand."""
    if isinstance(operand, Reg):
        return (operand.name,)
    if isinstance(operand, Vector):
        return _registers_of_all(operand.items)
    if isinstance(operand, Memory):
        return _registers_of_all((operand.base, *operand.coords))
    if isinstance(operand, Negated):
        return registers_of(operand.operand)
    if isinstance(operand, Pair):
        return _registers_of_all((operand.first, operand.second))
    return ()


def _registers_of_all(operands: Iterable[Operand]) -> tuple[str, ...]:
    return tuple(name for operand in operands for name in registers_of(operand))


def written_by(instruction: Instruction) -> tuple[str, ...]:
    """Registers that an instruction writes."""
    operands = instruction.operands
    return registers_of(operands[0]) if operands and _has_result(instruction) else ()


def defines_and_uses(instruction: Instruction) -> tuple[set[str], set[str]]:
    """Registers that an instruction writes, and those whose old value matters to it.

    A predicated instruction keeps the old value where the predicate is false, so it uses what it
    writes; a wgmma adds to its accumulator, so it uses that too.
    """
    defines = set(written_by(instruction))
    uses: set[str] = set()
    for operand in instruction.operands[1:] if defines else instruction.operands:
        uses.update(registers_of(operand))
    if instruction.predicate is not None:
        uses.add(instruction.predicate.name)
    if instruction.predicate is not None or instruction.parts[0] == "wgmma":
        uses |= defines
    return defines, uses


def build_blocks(kernel: Kernel, lanes_wait: bool = False) -> list[Block]:
    """The blocks of a kernel in the order of the text, with what is live around each.

    Where `lanes_wait` they end at bar.warp.sync too, which lanes may reach at several places.
    """
    instructions = kernel.instructions
    starts = {0, *kernel.labels.values()}
    for index, instruction in enumerate(instructions):
        if _terminator(instruction, lanes_wait) != "fall":
            starts.add(index + 1)
    ordered = sorted(start for start in starts if start < len(instructions))
    block_at = {start: index for index, start in enumerate(ordered)}
    blocks = [
        _block(kernel, block_at, start, end, lanes_wait)
        for start, end in zip(ordered, [*ordered[1:], len(instructions)], strict=True)
    ]
    _find_live_registers(blocks)
    return blocks


def _has_result(instruction: Instruction) -> bool:
    """Whether the first operand is written; memory in that place never is a register."""
    parts = instruction.parts
    if parts[0] in ("bar", "barrier"):
        return "voted" in parts
    if parts[0] == "wgmma":
        return "mma_async" in parts
    return parts[0] not in _WITHOUT_RESULT and not isinstance(instruction.operands[0], Memory)


def _terminator(instruction: Instruction, lanes_wait: bool) -> str:
    parts = instruction.parts
    if lanes_wait and parts[:2] == ("bar", "warp"):
        return "warp_barrier"
    predicated = instruction.predicate is not None
    if parts[0] == "bra":
        return "branch" if predicated else "jump"
    if parts[0] in ("ret", "exit"):
        return "branch_return" if predicated else "return"
    if parts[:3] == ("barrier", "cluster", "wait"):
        return "cluster_wait"
    if parts[0] in ("bar", "barrier") and "warp" not in parts and "cluster" not in parts:
        return "barrier" if "sync" in parts or "red" in parts else "fall"
    if parts[0] == "mbarrier" and ("try_wait" in parts or "test_wait" in parts):
        return "mbarrier_wait"
    return "registers" if parts[0] == "setmaxnreg" else "fall"


def _block(
    kernel: Kernel, block_at: dict[int, int], start: int, end: int, lanes_wait: bool
) -> Block:
    instructions = kernel.instructions[start:end]
    last = instructions[-1]
    terminator = _terminator(last, lanes_wait)
    following = block_at.get(end)
    if terminator in ("jump", "return"):
        following = None
    elif following is None:
        raise PtxError(f"the kernel {kernel.name} ends in {quoted(last.text)}", last.ptx_line)
    target = None
    if terminator in ("jump", "branch"):
        label = last.operands[-1]
        if not isinstance(label, Label):
            raise PtxError(f"{quoted(last.text)} does not name a label", last.ptx_line)
        target = block_at[kernel.labels[label.name]]
    after = tuple(dict.fromkeys(s for s in (following, target) if s is not None))
    return Block(block_at[start], start, instructions, terminator, following, target, after)


def _find_live_registers(blocks: Sequence[Block]) -> None:
    needed: list[set[str]] = []
    for block in blocks:
        uses: set[str] = set()
        defines: set[str] = set()
        for written, used in block.effects:
            uses |= used - defines
            defines |= written
        block.defines = frozenset(defines)
        block.live_in = frozenset(uses)
        needed.append(uses)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            live_out = frozenset[str]().union(*(blocks[s].live_in for s in block.successors))
            if live_out != block.live_out:
                block.live_out = live_out
                block.live_in = frozenset(needed[block.index] | (live_out - block.defines))
                changed = True
