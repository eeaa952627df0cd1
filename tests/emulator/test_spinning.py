# SPDX-License-Identifier: Apache-2.0
"""Threads that spin: legal loops end in every order, and others are reported."""

from __future__ import annotations

import re

import pytest

from ptx_emulator import SCHEDULES
from ptx_emulator.errors import DeadlockError
from tests.emulator.snippets import run_body

LOCK = """TRY: atom.acquire.gpu.global.cas.b32 %r9, [%rd1], 0, 1;
setp.eq.u32 %p3, %r9, 0; @%p3 bra TAKEN;
nanosleep.u32 32; bra TRY;
TAKEN:"""
COUNT = "ld.global.u32 %r10, [%rd0]; add.u32 %r10, %r10, 1; st.global.u32 [%rd0], %r10;"
UNLOCK = "st.release.gpu.global.u32 [%rd1], 0;"
LEADER = "and.b32 %r8, %r0, 31; setp.ne.u32 %p1, %r8, 0; mov.u32 %r7, 0;"


def run_on_zero(body: str, schedule: str, **options: int) -> tuple[int, list[str]]:
    """The word that the threads count in, which starts with 0xdeadbeef, and what was found."""
    out, result = run_body(body, schedule=schedule, **options)
    return int(out[0]) - 0xDEADBEEF, [str(finding) for finding in result.findings]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_lock_of_warps(schedule: str) -> None:
    body = f"{LEADER} @%p1 bra END; {LOCK} {COUNT} {UNLOCK} END:"
    assert run_on_zero(body, schedule, ctas=3) == (6, [])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_lock_of_lanes_that_is_taken_and_given_back_inside_the_loop(schedule: str) -> None:
    body = f"""AGAIN: atom.acquire.gpu.global.cas.b32 %r9, [%rd1], 0, 1;
    setp.ne.u32 %p3, %r9, 0; @%p3 bra NEXT; {COUNT} {UNLOCK} mov.u32 %r7, 1;
    NEXT: setp.eq.u32 %p2, %r7, 0; @%p2 bra AGAIN;"""
    assert run_on_zero(f"mov.u32 %r7, 0; {body}", schedule) == (128, [])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_lock_that_is_given_back_without_order(schedule: str) -> None:
    body = f"{LEADER} @%p1 bra END; {LOCK} {COUNT} st.global.u32 [%rd1], 0; END:"
    count, findings = run_on_zero(body, schedule, ctas=3)
    assert count == 6
    assert any("cta-write-conflict" in finding for finding in findings)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("waits", ["first", "last"])
def test_a_cta_waits_for_another(waits: str, schedule: str) -> None:
    other = "eq" if waits == "first" else "ne"
    body = f"""setp.{other}.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r0, 0; @!%p1 bra RAISE;
    WAIT: ld.acquire.gpu.global.u32 %r9, [%rd1]; setp.ne.u32 %p3, %r9, 0; @%p3 bra END;
    nanosleep.u32 32; bra WAIT;
    RAISE: @%p2 st.release.gpu.global.u32 [%rd1], 1;
    END:"""
    assert run_on_zero(body, schedule)[1] == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_loop_that_gives_up_ends(schedule: str) -> None:
    body = """mov.u32 %r7, 0;
    TRY: ld.volatile.global.u32 %r9, [%rd1]; add.u32 %r7, %r7, 1;
    setp.eq.u32 %p1, %r9, 0; setp.lt.and.u32 %p2, %r7, 300, %p1; @%p2 bra TRY;
    st.global.u32 [%rd3], %r7;"""
    out, result = run_body(body, schedule=schedule)
    assert out.tolist() == [300] * 128
    assert result.findings == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_flag_that_nobody_raises(schedule: str) -> None:
    body = """setp.lt.u32 %p1, %r0, 32; @!%p1 bra MEET;
    WAIT: ld.volatile.global.u32 %r9, [%rd1]; setp.ne.u32 %p3, %r9, 0; @%p3 bra MEET;
    nanosleep.u32 32; bra WAIT;
    MEET: bar.sync 0;"""
    with pytest.raises(DeadlockError) as error:
        run_body(body, schedule=schedule)
    text = str(error.value)
    assert re.search(r"in the loop at PTX line 22:\n    CTA 0 warp 0 reads memory until it", text)
    assert "CTA 1 warp 0 reads memory until it changes" in text
    assert re.search(r"CTA 0 barrier 0: 32 of 64 threads\n    at PTX line 24: warps 1", text)


def test_ctas_run_in_another_order_when_warps_do() -> None:
    ticket = """setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    atom.global.add.u32 %r10, [%rd1], 1; st.global.u32 [%rd3], %r10; END:"""
    taken = {}
    for schedule in SCHEDULES:
        out, result = run_body(ticket, schedule=schedule, ctas=4)
        assert result.findings == []
        taken[schedule] = out[::64].tolist()
    assert taken["lockstep"] == [0, 1, 2, 3]
    assert taken["depth-first"] == [2, 3, 0, 1]
