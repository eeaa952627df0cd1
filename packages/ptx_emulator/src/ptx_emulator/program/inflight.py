# SPDX-License-Identifier: Apache-2.0
"""Static check of wgmma registers: nothing may touch them before the group is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.program.blocks import Block, defines_and_uses, registers_of
from ptx_emulator.program.dataflow import states_at_entry
from ptx_emulator.ptx.model import Imm, Instruction, Kernel, Operand, Vector


@dataclass(frozen=True)
class _InFlight:
    """`age` counts the commits since the wgmma at `issued`; 0 means not committed."""

    age: int
    issued: int
    accumulator: bool


_State = dict[str, _InFlight]


def registers_in_flight(kernel: Kernel, blocks: Sequence[Block]) -> list[tuple[int, str, int]]:
    """(instruction, register, wgmma) wherever a register of an unfinished wgmma is touched.

    Both numbers are instruction indices. A wgmma of the same shape may add to an accumulator that
    is in flight, and several may read the same fragments of A.
    """
    found: list[tuple[int, str, int]] = []
    nothing: _State = {}
    states = states_at_entry(blocks, nothing, _through, _join)
    for block, at_entry in zip(blocks, states, strict=True):
        state = dict(at_entry or {})
        for index, instruction in enumerate(block.instructions, block.start):
            found += [
                (index, register, state[register].issued)
                for register in _touched(kernel, instruction, state)
            ]
            state = _after(index, instruction, state)
    return found


def _through(block: Block, state: _State) -> _State:
    state = dict(state)
    for index, instruction in enumerate(block.instructions, block.start):
        state = _after(index, instruction, state)
    return state


def _touched(kernel: Kernel, instruction: Instruction, state: _State) -> list[str]:
    if not state:
        return []
    defines, uses = defines_and_uses(instruction)
    touched = [name for name in sorted(defines | uses) if name in state]
    if instruction.parts[:2] != ("wgmma", "mma_async"):
        return touched
    accumulator = set(registers_of(_operand(instruction, 0)))
    return [
        name
        for name in touched
        if not _may_share(
            kernel.instructions[state[name].issued], instruction, state[name], name in accumulator
        )
    ]


def _may_share(
    earlier: Instruction, later: Instruction, held: _InFlight, accumulates: bool
) -> bool:
    if held.accumulator != accumulates:
        return False
    return not accumulates or _shape(earlier) == _shape(later)


def _operand(instruction: Instruction, place: int) -> Operand:
    if len(instruction.operands) <= place:
        raise PtxError(f"{quoted(instruction.text)} lacks operands", instruction.ptx_line)
    return instruction.operands[place]


def _shape(instruction: Instruction) -> str:
    return next((part for part in instruction.parts if part.startswith("m64")), "")


def _after(index: int, instruction: Instruction, state: _State) -> _State:
    if instruction.parts[0] != "wgmma":
        return state
    kind = "".join(instruction.parts[1:2])
    if kind == "mma_async":
        fragments = _operand(instruction, 1)
        if isinstance(fragments, Vector):
            for name in registers_of(fragments):
                state[name] = _InFlight(0, index, accumulator=False)
        for name in registers_of(_operand(instruction, 0)):
            state[name] = _InFlight(0, index, accumulator=True)
    elif kind == "commit_group":
        return {
            name: _InFlight(held.age + 1, held.issued, held.accumulator)
            for name, held in state.items()
        }
    elif kind == "wait_group" and instruction.predicate is None:
        allowed = _operand(instruction, 0)
        if isinstance(allowed, Imm):
            return {name: held for name, held in state.items() if held.age <= allowed.bits}
    return state


def _join(one: _State, other: _State) -> _State:
    joined = dict(one)
    for name, held in other.items():
        if name not in joined or held.age < joined[name].age:
            joined[name] = held
    return joined
