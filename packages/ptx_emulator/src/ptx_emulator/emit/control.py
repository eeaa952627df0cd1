# SPDX-License-Identifier: Apache-2.0
"""Branches, returns, registers that warps hand on, and what changes nothing in an emulator."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.ptx.model import Imm, Instruction


@emits("bra", "ret", "exit")
def branch(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """The block returns who takes the branch; the scheduler knows where it leads."""
    emitter.result = predicate


@emits("trap", "brkpt")
def trap(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """A breakpoint is a trap where no debugger is; CUTLASS has them where nobody should come."""
    emitter.line(f"m.trap(s, {predicate}, {emitter.pc})")


@emits("setmaxnreg")
def set_registers(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """setmaxnreg ends its block and returns (whether registers are taken, how many a thread)."""
    (count,) = instruction.operands
    action, *modifiers = instruction.parts[1:]
    if action not in ("inc", "dec") or modifiers != ["sync", "aligned", "u32"] or predicate:
        raise refuse(instruction)
    if not isinstance(count, Imm) or count.bits % 8 or not 24 <= count.bits <= 256:
        raise refuse(instruction, "setmaxnreg takes a multiple of 8 from 24 to 256")
    emitter.result = f"({action == 'inc'}, {count.bits})"


@emits("griddepcontrol")
def depend_on_grid(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """A wait for the kernel before; letting the next one start changes nothing."""
    if "wait" in instruction.parts:
        emitter.line(f"m.kernel_before.wait(s, {predicate})")


@emits("createpolicy")
def create_policy(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """A number that accesses name, and that nothing else depends on."""
    policy = emitter.constant("u64", 0)
    emitter.write(instruction.operands[0], policy, "u64", predicate)


@emits("nanosleep", "prefetch", "prefetchu", "pragma", "applypriority", "pmevent")
def nothing(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    pass
