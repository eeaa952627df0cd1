# SPDX-License-Identifier: Apache-2.0
"""Whole small kernels: control flow, barriers, schedules, and what cannot run."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import (
    SCHEDULES,
    DeadlockError,
    EmulatorError,
    GlobalMemory,
    PtxError,
    load_program,
    run,
)
from tests.emulator.snippets import STORE, kernel, run_body


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_divergent_loops_run_every_lane_its_own_number_of_times(schedule: str) -> None:
    body = (
        """
mov.u32 %r10, 0;
and.b32 %r11, %r3, 7;
LOOP:
setp.eq.u32 %p1, %r11, 0;
@%p1 bra DONE;
add.s32 %r10, %r10, %r3;
sub.s32 %r11, %r11, 1;
bra LOOP;
DONE:
"""
        + STORE
    )
    out, result = run_body(body, schedule=schedule)
    index = np.arange(128)
    assert np.array_equal(out, index * (index & 7))
    assert result.findings == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_a_turn_apart_wait_for_each_other(schedule: str) -> None:
    """Lane 0 takes a longer way around the loop; the shuffle at its head needs all lanes."""
    body = (
        """
mov.u32 %r10, 0;
mov.u32 %r11, 0;
and.b32 %r12, %r0, 31;
HEAD:
shfl.sync.idx.b32 %r13, %r11, 5, 31, -1;
add.u32 %r10, %r10, %r13;
add.u32 %r11, %r11, 1;
setp.eq.u32 %p1, %r11, 4;
@%p1 bra DONE;
setp.ne.u32 %p2, %r12, 0;
@%p2 bra HEAD;
add.u32 %r10, %r10, 100;
bra HEAD;
DONE:
"""
        + STORE
    )
    out, _ = run_body(body, schedule=schedule)
    assert np.array_equal(out, 0 + 1 + 2 + 3 + np.where(np.arange(128) % 32 == 0, 300, 0))


def test_predicates_keep_the_old_value() -> None:
    body = (
        """
mov.u32 %r10, 5;
setp.lt.u32 %p1, %r3, 3;
@%p1 mov.u32 %r10, 9;
@!%p1 add.u32 %r10, %r10, %r3;
"""
        + STORE
    )
    out, _ = run_body(body)
    index = np.arange(128)
    assert np.array_equal(out, np.where(index < 3, 9, 5 + index))


def test_narrow_loads_extend_by_their_sign() -> None:
    data = np.arange(-64, 64, dtype=np.int32)
    signed = "ld.global.s16 %r10, [%rd4];\n" + STORE
    out, _ = run_body(signed, data.view(np.uint32), dtype=np.int32)
    assert np.array_equal(out, data)
    unsigned = "ld.global.u16 %r10, [%rd4];\n" + STORE
    out, _ = run_body(unsigned, data.view(np.uint32))
    assert np.array_equal(out, data.view(np.uint32) & 0xFFFF)


EXCHANGE = (
    """
shl.b32 %r20, %r0, 2;
mov.u32 %r21, buffer;
add.u32 %r22, %r21, %r20;
st.shared.u32 [%r22], %r3;
{barrier}
xor.b32 %r23, %r20, 252;
add.u32 %r24, %r21, %r23;
ld.shared.u32 %r10, [%r24];
"""
    + STORE
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_makes_an_exchange_between_warps_right(schedule: str) -> None:
    out, result = run_body(EXCHANGE.format(barrier="bar.sync 0;"), schedule=schedule)
    index = np.arange(128)
    assert np.array_equal(out, index // 64 * 64 + (63 - index % 64))
    assert result.findings == []


@pytest.mark.parametrize("barrier", ["", "bar.warp.sync -1;"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_it_the_race_is_found(schedule: str, barrier: str) -> None:
    _, result = run_body(EXCHANGE.format(barrier=barrier), schedule=schedule)
    kinds = {finding.kind for finding in result.findings}
    assert kinds & {"race", "uninitialised-shared"}, kinds


def test_a_finding_names_both_lines() -> None:
    text = kernel(EXCHANGE.format(barrier=""))
    lines = text.splitlines()
    _, result = run_body(EXCHANGE.format(barrier=""))
    race = next(finding for finding in result.findings if finding.kind == "race")
    assert race.ptx_line is not None
    assert race.other_ptx_line is not None
    assert {lines[race.ptx_line - 1][:9], lines[race.other_ptx_line - 1][:9]} == {
        "st.shared",
        "ld.shared",
    }


def test_named_barriers_pair_arrivals_with_waits() -> None:
    """Warp 0 writes and arrives; warp 1 waits and reads."""
    body = (
        """
mov.u32 %r21, buffer;
setp.ge.u32 %p1, %r0, 32;
@%p1 bra CONSUME;
shl.b32 %r20, %r0, 2;
add.u32 %r22, %r21, %r20;
st.shared.u32 [%r22], %r3;
bar.arrive 1, 64;
mov.u32 %r10, 7;
bra DONE;
CONSUME:
bar.sync 1, 64;
sub.u32 %r20, %r0, 32;
shl.b32 %r20, %r20, 2;
add.u32 %r22, %r21, %r20;
ld.shared.u32 %r10, [%r22];
DONE:
"""
        + STORE
    )
    for schedule in SCHEDULES:
        out, result = run_body(body, schedule=schedule)
        index = np.arange(128)
        expected = np.where(index % 64 < 32, 7, index - 32)
        assert np.array_equal(out, expected), schedule
        assert result.findings == []


def test_threads_that_returned_do_not_hold_up_a_barrier() -> None:
    body = (
        """
mov.u32 %r10, 3;
setp.ge.u32 %p1, %r0, 32;
@%p1 ret;
bar.sync 0;
"""
        + STORE
    )
    out, _ = run_body(body)
    assert np.array_equal(out % 2**16, np.where(np.arange(128) % 64 < 32, 3, 0xBEEF))


def test_a_barrier_nobody_completes_is_a_deadlock() -> None:
    body = (
        """
mov.u32 %r10, 3;
setp.ge.u32 %p1, %r0, 32;
@%p1 bra DONE;
bar.sync 1, 64;
DONE:
"""
        + STORE
    )
    with pytest.raises(DeadlockError, match=r"CTA 0 barrier 1: 32 of 64 threads"):
        run_body(body)


def test_what_is_not_emulated_is_refused_at_load_with_its_line() -> None:
    text = kernel("suld.b.1d.b32.trap %r1, [%rd0, {%r2}];")
    line = next(i for i, text_line in enumerate(text.splitlines(), 1) if "suld.b" in text_line)
    with pytest.raises(PtxError, match=rf"PTX line {line}: .*suld\.b\.1d") as error:
        load_program(text)
    assert error.value.line == line


def test_unknown_modifiers_are_refused_too() -> None:
    with pytest.raises(PtxError, match=r"modifier \.sat"):
        load_program(kernel("add.sat.s32 %r1, %r2, %r3;"))


@pytest.mark.parametrize("trap", ["trap", "brkpt"])
def test_a_trap_names_its_lane(trap: str) -> None:
    body = f"""
setp.eq.u32 %p1, %r3, 70;
@%p1 bra BAD;
bra DONE;
BAD:
{trap};
DONE:
"""
    with pytest.raises(EmulatorError, match=f"{trap} in CTA 1 warp 0 lane 6"):
        run_body(body)


def test_arguments_are_checked() -> None:
    program = load_program(kernel(""))
    with pytest.raises(EmulatorError, match="takes 2 arguments, 1 were given"):
        run(program, GlobalMemory(), grid=(1, 1, 1), block=32, args=[1])
    with pytest.raises(EmulatorError, match="1056 threads in a block"):
        run(program, GlobalMemory(), grid=(1, 1, 1), block=(33, 32, 1), args=[1, 2])
    with pytest.raises(EmulatorError, match="'eager'"):
        run(program, GlobalMemory(), grid=(1, 1, 1), block=32, args=[1, 2], schedule="eager")


def test_instructions_are_counted_by_warp() -> None:
    _, result = run_body("mov.u32 %r10, 1;\n" + STORE, threads=96, ctas=2)
    executed = result.counters.to_dict()["instructions"]
    assert executed["st.global.u32"] == 6
    assert executed["mov.u32"] == 4 * 6


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (2, 3, 0)])
def test_a_grid_without_ctas_is_refused_as_a_gpu_does(grid: tuple[int, int, int]) -> None:
    program = load_program(kernel(STORE))
    with pytest.raises(EmulatorError, match="launches no empty grid"):
        run(program, GlobalMemory(1 << 12), grid=grid, block=32, args=[0])


TURNS = """
and.b32 %r5, %r0, 31;
setp.ne.u32 %p1, %r5, 0;
@%p1 bra DONE;
SPIN:
ld.{load}.global.u32 %r6, [%rd1];
setp.ne.u32 %p2, %r6, %r1;
@%p2 bra SPIN;
ld.global.u32 %r10, [%rd0];
add.u32 %r10, %r10, %r1;
st.global.u32 [%rd0], %r10;
red.{change}.global.add.u32 [%rd1], {step};
DONE:
"""
IN_ORDER = {"load": "acquire.gpu", "change": "release.gpu", "step": "1"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_take_turns_by_a_counter(schedule: str) -> None:
    body = TURNS.format(**IN_ORDER)
    out, result = run_body(body, threads=32, ctas=5, schedule=schedule)
    assert out[0] == (0xDEADBEEF + 1 + 2 + 3 + 4) % 2**32
    assert result.findings == []


@pytest.mark.parametrize("weak", [{"load": "relaxed.gpu"}, {"change": "relaxed.gpu"}])
def test_a_turn_without_acquire_or_release_orders_nothing(weak: dict[str, str]) -> None:
    _, result = run_body(TURNS.format(**IN_ORDER | weak), threads=32, ctas=3)
    assert {finding.kind for finding in result.findings} == {"cta-write-conflict"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_turn_that_never_comes_is_a_deadlock(schedule: str) -> None:
    body = TURNS.format(**IN_ORDER | {"step": "3"})
    expected = r"CTA 1 warp 0 reads memory until it changes"
    with pytest.raises(DeadlockError, match=expected):
        run_body(body, threads=32, ctas=2, schedule=schedule)
