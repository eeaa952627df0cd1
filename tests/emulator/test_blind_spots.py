# SPDX-License-Identifier: Apache-2.0
"""Mistakes that leave most results right: membermasks, barriers, mbarriers, unwritten registers."""

from __future__ import annotations

import pytest

from ptx_emulator import RunResult
from ptx_emulator.errors import EmulatorError
from tests.emulator.snippets import run_body

LANE = "and.b32 %r4, %r0, 31;"
SOME = f"{LANE} setp.lt.u32 %p1, %r4, 16; @!%p1 bra AFTER;"
EXCHANGES = {
    "bar.warp.sync": "bar.warp.sync %s;",
    "shfl": "shfl.sync.bfly.b32 %%r5, %%r0, 1, 31, %s;",
    "vote": "vote.sync.any.pred %%p2, %%p1, %s;",
    "redux": "redux.sync.add.s32 %%r5, %%r0, %s;",
    "match": "match.any.sync.b32 %%r5, %%r0, %s;",
}


def kinds(result: RunResult) -> list[str]:
    return [finding.kind for finding in result.findings]


def found(body: str, **options: int) -> list[str]:
    return kinds(run_body(body, **options)[1])


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_members_that_do_not_take_part(exchange: str) -> None:
    after = "AFTER: st.global.u32 [%rd3], %r0;"
    assert found(f"{SOME} {exchange % '0xffffffff'} {after}") == ["membermask"]
    assert found(f"{SOME} {exchange % '0x0000ffff'} {after}") == []
    assert found(f"setp.ne.u32 %p1, %r0, 0; {exchange % '-1'}") == []


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_a_lane_that_is_not_among_its_members(exchange: str) -> None:
    (finding,) = run_body(f"{SOME} {exchange % '0x00007fff'} AFTER:")[1].findings
    assert (finding.kind, finding.lane, finding.count) == ("membermask", 15, 4)


def test_lanes_that_have_ended_need_not_take_part() -> None:
    ended = f"{LANE} setp.lt.u32 %p1, %r4, 16; @!%p1 ret;"
    assert found(f"{ended} {EXCHANGES['shfl'] % '-1'}") == []
    assert found(EXCHANGES["shfl"] % "-1", threads=40) == []


def test_lanes_end_before_a_barrier_or_go_past_it() -> None:
    for barrier in ("bar.warp.sync -1;", "bar.sync 0;", "barrier.sync.aligned 0;"):
        assert found(f"{SOME} {barrier} st.global.u32 [%rd3], %r0; AFTER:") == []
    past = "AFTER: st.global.u32 [%rd3], %r0;"
    assert found(f"{SOME} bar.sync 0; {past}") == ["divergent-barrier"]
    assert found(f"{SOME} barrier.sync.aligned 0; {past}") == ["divergent-barrier"]
    assert found(f"{SOME} barrier.sync 0; {past}") == []


def test_a_cta_has_sixteen_barriers() -> None:
    assert found("bar.sync 15;") == []
    with pytest.raises(EmulatorError, match="barriers 0 to 15"):
        run_body("bar.sync 16;")
    for use in ("bar.sync %r5;", "bar.arrive %r5, 64;"):
        with pytest.raises(EmulatorError, match="barrier 16: a CTA has the barriers 0 to 15"):
            run_body(f"mov.u32 %r5, 16; {use}")


INIT = """setp.eq.u32 %p1, %r0, 0; mov.u32 %r5, buffer;
@%p1 mbarrier.init.shared.b64 [%r5], 1;
"""


def test_data_over_an_mbarrier() -> None:
    assert found(f"{INIT} bar.sync 0; @%p1 st.shared.u32 [%r5+8], %r0;") == []
    for at in (0, 4):
        (finding,) = run_body(f"{INIT} bar.sync 0; @%p1 st.shared.u32 [%r5+{at}], %r0;")[1].findings
        assert (finding.kind, finding.count) == ("mbarrier-overwritten", 2)
    wide = "@%p1 st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0};"
    assert found(f"{INIT} bar.sync 0; {wide}") == ["mbarrier-overwritten"]
    invalidated = "@%p1 mbarrier.inval.shared.b64 [%r5];"
    assert found(f"{INIT} bar.sync 0; {invalidated} bar.sync 0; {wide}") == []


def test_a_wait_whose_result_nothing_looks_at() -> None:
    arrived = f"{INIT} bar.sync 0; @%p1 mbarrier.arrive.shared.b64 _, [%r5];"
    for kind in ("try_wait", "test_wait"):
        wait = f"mbarrier.{kind}.parity.shared.b64 %p2, [%r5], 0;"
        assert found(f"{arrived} {wait}") == ["mbarrier-untested"]
        assert found(f"{arrived} {wait} mov.pred %p2, 0; @%p2 bra END; END:") != []
        assert found(f"{arrived} AGAIN: {wait} @!%p2 bra AGAIN;") == []


def test_registers_that_no_path_writes() -> None:
    (finding,) = run_body("add.u32 %r11, %r10, 1;")[1].findings
    assert (finding.kind, finding.count) == ("uninitialised-register", 128)
    assert "%r10" in finding.detail
    assert found("mov.u32 %r11, %r10;") == []
    assert found("mov.u32 %r11, %r10; add.u32 %r12, %r11, 1;") == ["uninitialised-register"]


def test_registers_that_some_lanes_have_not_written() -> None:
    some = f"{SOME} mov.u32 %r10, 7; AFTER:"
    (finding,) = run_body(f"{some} add.u32 %r11, %r10, 1;")[1].findings
    assert (finding.kind, finding.lane, finding.count) == ("uninitialised-register", 16, 64)
    assert found(f"{some} @!%p1 bra END; add.u32 %r11, %r10, 1; END:") == []
    assert found(f"{some} @%p1 add.u32 %r11, %r10, 1;") == []
    copied = f"{some} mov.u32 %r12, %r10; mov.u32 %r10, 0;"
    assert found(f"{copied} bar.sync 0; add.u32 %r11, %r10, 1;") == []
    assert found(f"{copied} bar.sync 0; add.u32 %r11, %r12, 1;") == ["uninitialised-register"]


def test_an_index_from_one_shared_array_into_the_next() -> None:
    arrays = ".shared .align 16 .b8 first[256]; .shared .align 16 .b8 second[256];"
    address = "mov.u32 %r5, first; shl.b32 %r6, %r0, 2; add.s32 %r7, %r5, %r6;"
    assert found(f"{arrays} {address} st.shared.u32 [%r7], %r0;") == []
    (finding,) = run_body(f"{arrays} {address} st.shared.u32 [%r7+4], %r0;")[1].findings
    assert (finding.kind, finding.count, finding.lane) == ("stray-address", 2, 31)
    assert "outside of first" in finding.detail


def test_a_pointer_from_one_allocation_into_another() -> None:
    far = 512 + 4096  # bytes of `in`, and of the gap behind it
    assert found(f"ld.global.u32 %r10, [%rd4+{far}];") == ["stray-address"]
    assert found("ld.global.u32 %r10, [%rd4]; st.global.u32 [%rd3], %r10;") == []
    either = "setp.eq.u32 %p1, %r1, 0; selp.b64 %rd6, %rd3, %rd4, %p1;"
    assert found(f"{either} ld.global.u32 %r10, [%rd6];") == []
