# SPDX-License-Identifier: Apache-2.0
"""Static check of wgmma registers: a fence stands between other accesses and the wgmma.

An access of another instruction to an accumulator, or to a fragment of A, is ordered before a
wgmma of these registers by wgmma.fence alone. The first wgmma needs a fence in any case.
Consecutive wgmma on one accumulator need none.

Compilers move arithmetic from before a fence to behind it, up to the wgmma, since a fence says
nothing of registers to them. ptxas moves it back. Such accesses count as before the fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ptx_emulator.program.blocks import Block, defines_and_uses, registers_of
from ptx_emulator.program.dataflow import states_at_entry
from ptx_emulator.ptx.model import Instruction, Kernel, Vector

NO_FENCE = ""  # stands in a state for a path without any fence


@dataclass(frozen=True)
class Unfenced:
    """A wgmma without a fence: its register that instruction `accessed` has used, or no register
    where there is no fence at all before it."""

    index: int
    register: str | None = None
    accessed: int | None = None


class _Kind(Enum):
    FENCE = auto()
    PRODUCT = auto()
    ACCESS = auto()


class _Event(NamedTuple):
    """An instruction that concerns registers of a wgmma."""

    pc: int
    kind: _Kind
    registers: tuple[str, ...]


_State = dict[str, int]  # register -> the instruction that accessed it since the last fence


def unfenced_products(kernel: Kernel, blocks: Sequence[Block]) -> list[Unfenced]:
    """Wherever a wgmma uses a register that something else accessed since the last fence."""
    products = [instruction for instruction in kernel.instructions if _is_product(instruction)]
    watched = {register for product in products for register in _registers(product)}
    if not watched:
        return []
    events = [_events(block, watched) for block in blocks]
    found: list[Unfenced] = []
    states = states_at_entry(
        blocks,
        {NO_FENCE: -1},
        lambda block, state: _follow(events[block.index], state),
        lambda one, other: other | one,
    )
    for in_block, state in zip(events, states, strict=True):
        if state is not None:
            _follow(in_block, state, found)
    return found


def _follow(events: Sequence[_Event], state: _State, found: list[Unfenced] | None = None) -> _State:
    """The state after the events of a block; what is missing in it is added to `found`."""
    state = dict(state)
    fenced = False  # since the last wgmma
    for pc, kind, registers in events:
        if kind is _Kind.FENCE:
            state, fenced = {}, True
        elif kind is _Kind.PRODUCT:
            fenced = False
            for name in (NO_FENCE, *registers) if state else ():
                accessed = state.pop(name, None)
                if accessed is not None and found is not None:
                    found.append(Unfenced(pc, name, accessed) if name else Unfenced(pc))
        elif not fenced:
            state.update(dict.fromkeys(registers, pc))
    return state


def _events(block: Block, watched: set[str]) -> list[_Event]:
    events = []
    for index, instruction in enumerate(block.instructions, block.start):
        if instruction.parts[:2] == ("wgmma", "fence"):
            events.append(_Event(index, _Kind.FENCE, ()))
        elif _is_product(instruction):
            events.append(_Event(index, _Kind.PRODUCT, _registers(instruction)))
        else:
            defines, uses = defines_and_uses(instruction)
            if accessed := watched & (defines | uses):
                events.append(_Event(index, _Kind.ACCESS, tuple(sorted(accessed))))
    return events


def _is_product(instruction: Instruction) -> bool:
    return instruction.parts[:2] == ("wgmma", "mma_async")


def _registers(instruction: Instruction) -> tuple[str, ...]:
    """The accumulator of a wgmma, and A where it is in registers."""
    vectors = (operand for operand in instruction.operands[:2] if isinstance(operand, Vector))
    return tuple(register for vector in vectors for register in registers_of(vector))
