# SPDX-License-Identifier: Apache-2.0
"""mbarrier objects in shared memory."""

from __future__ import annotations

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.ptx.model import Instruction

KNOWN = {
    *("init", "inval", "arrive", "expect_tx", "try_wait", "test_wait", "parity", "release"),
    *("acquire", "relaxed", "cta", "cluster", "shared", "shared::cta", "shared::cluster", "b64"),
}


@emits("mbarrier")
def mbarrier(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if not set(instruction.parts[1:]) <= KNOWN:
        raise refuse(instruction)
    kind, operands, pc = instruction.parts[1], instruction.operands, emitter.pc
    if kind == "init":
        address, count = emitter.address(operands[0], "u32"), emitter.array(operands[1], "u32")
        emitter.line(f"m.mbarriers.init(s, {address}, {count}, {predicate}, {pc})")
    elif kind == "expect_tx":
        address, tx = emitter.address(operands[0], "u32"), emitter.array(operands[1], "u32")
        emitter.line(f"m.mbarriers.expect(s, {address}, {tx}, {predicate}, {pc})")
    elif kind == "arrive":
        _arrive(emitter, instruction, predicate)
    elif kind in ("try_wait", "test_wait"):
        _wait(emitter, instruction, predicate)
    elif kind == "inval":
        address = emitter.address(operands[0], "u32")
        emitter.line(f"m.mbarriers.invalidate(s, {address}, {predicate}, {pc})")
    else:
        raise refuse(instruction)


def _arrive(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    state, memory, *values = instruction.operands
    address = emitter.address(memory, "u32")
    tx = count = "None"
    if "expect_tx" in instruction.parts:
        tx = emitter.array(values[0], "u32")
    elif values:
        count = emitter.array(values[0], "u32")
    arrived = f"m.mbarriers.arrive(s, {address}, {tx}, {count}, {predicate}, {emitter.pc})"
    emitter.write(state, emitter.temporary(arrived, "u64"), "u64", predicate)


def _wait(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Ends its block: the scheduler lets the lanes go on when the phase is over, so it succeeds.

    The phase is named by its parity, or by the state that an arrival gave, which is the parity.
    """
    if predicate is not None:
        raise refuse(instruction)
    done, memory, parity, *_ = instruction.operands
    address = emitter.address(memory, "u32")
    named = "u32" if "parity" in instruction.parts else "u64"
    phase = emitter.cast(emitter.array(parity, named), "u32")
    emitter.write(done, emitter.constant("b1", 1), "b1")
    emitter.result = f"({address}, {phase})"
