# SPDX-License-Identifier: Apache-2.0
"""Whether the order of the warps can change what a kernel does.

Warps that meet at barriers of the whole CTA alone, and exchange data through shared memory alone,
do the same in every order, unless they race; and races are found in every order. What else warps
can learn from each other makes their order matter: results of atomics, sums of floats, mbarriers,
barriers of some warps, copies in bulk, wgmma, clocks, calls, registers that warps hand on, and
global memory that a kernel both loads and stores, which only a run tells.
"""

from __future__ import annotations

from collections.abc import Set

from ptx_emulator.program.blocks import Block, written_by
from ptx_emulator.ptx.model import Imm, Instruction, Kernel, Memory, Special
from ptx_emulator.types import TIMERS

_ACCESSES = {"ld", "ldu", "st", "cp", "ldmatrix", "stmatrix", "wmma", "prefetch", "prefetchu"}
_SPACES = {"shared", "shared::cta", "global", "local", "param", "const"}
_COMMUTATIVE = {"add", "min", "max", "and", "or", "xor"}
_INTEGERS = {f"{sign}{bits}" for sign in "bsu" for bits in (32, 64)}
_LATE = {"wgmma", "call", "trap", "brkpt", "setmaxnreg"}


def meets_at_barriers(kernel: Kernel, blocks: list[Block], used: Set[str]) -> bool:
    """Whether warps learn of each other at barriers of the CTA, and through memory, alone.

    `used` are the registers that some instruction reads.
    """
    everything = all(_in_any_order(instruction, used) for instruction in kernel.instructions)
    return everything and not any(block.spins for block in blocks)


def _in_any_order(instruction: Instruction, used: Set[str]) -> bool:
    parts, operands = instruction.parts, instruction.operands
    if parts[0] in ("bar", "barrier"):
        return "warp" in parts or _of_the_cta(instruction)
    if any(isinstance(operand, Special) and operand.name in TIMERS for operand in operands):
        return False
    if not any(isinstance(operand, Memory) for operand in operands):
        return parts[0] not in _LATE
    if parts[0] in ("atom", "red"):
        return _commutes(instruction, used)
    named = {part for part in parts if part.split("::")[0] in _SPACES}
    return parts[0] in _ACCESSES and "bulk" not in parts and bool(named) and named <= _SPACES


def _commutes(instruction: Instruction, used: Set[str]) -> bool:
    """Whether atomics of integers give the same in any order, and nobody looks at their results."""
    parts = instruction.parts
    if parts[0] == "atom" and not used.isdisjoint(written_by(instruction)):
        return False
    return not _COMMUTATIVE.isdisjoint(parts) and parts[-1] in _INTEGERS


def _of_the_cta(instruction: Instruction) -> bool:
    """Whether all threads wait, or read a vote of all, at a barrier that the text names."""
    parts, operands = instruction.parts, instruction.operands
    if "cluster" in parts or "arrive" in parts:
        return False
    number = operands[1] if "voted" in parts else operands[0]
    return isinstance(number, Imm) and len(operands) == (1 if "sync" in parts else 2)
