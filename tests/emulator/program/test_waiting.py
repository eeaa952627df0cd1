# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from ptx_emulator import load_program
from ptx_emulator.program.waiting import PATIENCE
from tests.emulator.snippets import kernel

LOOP = "AGAIN: {} setp.eq.u32 %p1, %r9, 0; @%p1 bra AGAIN;"


def patience(body: str) -> list[int]:
    """Of the loops of a kernel in which threads may wait."""
    return list(load_program(kernel(body)).waiting_loops.values())


def test_loops_that_look_at_what_others_change() -> None:
    assert patience(LOOP.format("ld.global.u32 %r9, [%rd3];")) == []
    assert patience(LOOP.format("ld.volatile.global.u32 %r9, [%rd3];")) == [1]
    assert patience(LOOP.format("atom.global.cas.b32 %r9, [%rd3], 0, 1;")) == [PATIENCE]


def test_loops_around_them_wait_too() -> None:
    inner = LOOP.format("ld.acquire.gpu.global.u32 %r9, [%rd3];")
    assert patience(f"OUTER: mov.u32 %r8, 1; {inner} setp.eq.u32 %p2, %r0, 0; @%p2 bra OUTER;") == [
        PATIENCE,
        1,
    ]
