# SPDX-License-Identifier: Apache-2.0
"""Warps hand registers on by setmaxnreg: who waits, who may go on, and what is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ptx_emulator import (
    SCHEDULES,
    DeadlockError,
    GlobalMemory,
    PtxError,
    RunResult,
    load_program,
    run,
)

BOUNDS = ".maxntid 384, 1, 1 .minnctapersm 1"  # 168 registers a thread
HEADER = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry registers() {directives}
{{
.reg .pred %p<4>;
.reg .b32 %r<4>;
mov.u32 %r0, %tid.x;
shr.u32 %r1, %r0, 5;
setp.ge.u32 %p1, %r0, 128;
setp.ge.u32 %p2, %r0, 256;
"""
FIRST_LINE = len(HEADER.splitlines()) + 1
MET = "bar.sync 1, 256;"
PRODUCT = """.reg .b64 %rd<2>;
.reg .f32 %f<4>;
.shared .align 128 .b8 tile[4096];
wgmma.fence.sync.aligned;
mov.u64 %rd1, tile;
shr.u64 %rd1, %rd1, 4;
or.b64 %rd1, %rd1, 0x0000001000010000;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd1, 0, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;"""


def dec(count: int) -> str:
    return f"setmaxnreg.dec.sync.aligned.u32 {count};"


def inc(count: int) -> str:
    return f"setmaxnreg.inc.sync.aligned.u32 {count};"


def roles(producer: str, consumers: str) -> str:
    """What the first warpgroup does, and what the others do."""
    return f"@%p1 bra CONSUMERS;\n{producer}\nret;\nCONSUMERS:\n{consumers}"


def launch(
    body: str,
    schedule: str = "lockstep",
    *,
    directives: str = BOUNDS,
    ctas: int = 2,
    block: int = 384,
    **options: Any,
) -> RunResult:
    program = load_program(f"{HEADER.format(directives=directives)}{body}\nret;\n}}\n")
    options |= {"grid": (ctas, 1, 1), "block": block, "args": [], "schedule": schedule}
    return run(program, GlobalMemory(), **options)


def details(result: RunResult) -> list[str]:
    assert {finding.kind for finding in result.findings} <= {"setmaxnreg"}
    return [finding.detail for finding in result.findings]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("directives", "block", "fewer", "more"),
    [
        (BOUNDS, 384, 24, 240),
        (BOUNDS, 384, 40, 232),
        (".maxntid 512 .minnctapersm 1", 512, 32, 160),
        (".maxntid 256 .minnctapersm 2", 256, 40, 216),
        (".maxnreg 104", 384, 24, 144),
    ],
)
def test_warps_take_what_others_gave_up(
    schedule: str, directives: str, block: int, fewer: int, more: int
) -> None:
    body = roles(dec(fewer), inc(more))
    result = launch(body, schedule, directives=directives, block=block)
    assert details(result) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize(
    ("directives", "block", "fewer", "more", "at_launch"),
    [
        (BOUNDS, 384, 40, 240, 168),
        (BOUNDS, 384, 32, 240, 168),
        (".maxntid 512 .minnctapersm 1", 512, 40, 160, 128),
        (".maxntid 256 .minnctapersm 2", 256, 40, 224, 128),
        (".maxnreg 104", 384, 24, 152, 104),
    ],
)
def test_an_increase_that_nothing_serves_is_a_deadlock(
    schedule: str,
    checks: bool,
    directives: str,
    block: int,
    fewer: int,
    more: int,
    at_launch: int,
) -> None:
    body = roles(dec(fewer), inc(more))
    has = rf"CTA 0 has {block * at_launch} registers, {at_launch} a thread at launch, and \d+ of"
    with pytest.raises(DeadlockError, match=has) as error:
        launch(body, schedule, directives=directives, block=block, checks=checks)
    assert f"warps 0 to 3 hold {fewer} a thread\n" in str(error.value)
    line = FIRST_LINE + body.splitlines().index(inc(more))
    waiting = f"hold(s)? {at_launch} a thread, waiting for {more} by setmaxnreg.inc at PTX line"
    assert re.search(f"{waiting} {line}", str(error.value))
    assert "CTAs that wait for registers: 2" in str(error.value)


def test_a_deadlock_says_how_far_the_registers_went() -> None:
    with pytest.raises(DeadlockError) as error:
        launch(roles(dec(40), inc(240)), ctas=1)
    assert str(error.value).splitlines() == [
        "registers cannot go on:",
        "  CTA 0 has 64512 registers, 168 a thread at launch, and 256 of them are free:",
        "    warps 0 to 3 hold 40 a thread",
        "    warps 4 to 10 hold 240 a thread",
        "    warp 11 holds 168 a thread, waiting for 240 by setmaxnreg.inc at PTX line 16",
    ]


def test_a_pool_is_that_of_one_cta_of_a_cluster() -> None:
    """The second CTA of each cluster gives nothing up, and the first has enough for itself."""
    rank = "mov.u32 %r2, %cluster_ctarank;\nsetp.eq.u32 %p3, %r2, 1;\n"
    body = f"{rank}{roles(f'@%p3 bra KEEP;{dec(24)}ret;KEEP: {dec(168)}', inc(240))}"
    with pytest.raises(DeadlockError) as error:
        launch(body, ctas=4, cluster=(2, 1, 1))
    assert "CTA 1 has 64512 registers, 168 a thread at launch, and 0 of" in str(error.value)
    assert "warps 0 to 3 hold 168 a thread\n    warps 4 to 11 hold 168 a" in str(error.value)
    assert "CTAs that wait for registers: 2" in str(error.value)


def test_those_that_launch_with_fewer_warps_have_fewer_registers() -> None:
    body = roles(dec(24), inc(240))
    assert details(launch(body, directives=".maxntid 256 .minnctapersm 1", block=256)) == []
    with pytest.raises(DeadlockError, match="CTA 0 has 43008 registers"):
        launch(roles(dec(104), inc(240)), block=256)


@pytest.mark.parametrize("seed", range(4))
def test_registers_go_round(seed: int) -> None:
    """One warpgroup has its turn behind the other, with what that one gives back."""
    first = f"{inc(240)}bar.arrive 2, 256;bar.sync 1, 128;{dec(168)}bar.sync 3, 256;"
    second = f"bar.sync 2, 256;{inc(240)}bar.arrive 3, 256;"
    consumers = f"@%p2 bra SECOND;{first}ret;\nSECOND:{second}"
    assert details(launch(roles(dec(96), consumers), "random", seed=seed)) == []
    with pytest.raises(DeadlockError, match=r"warps 8 to 11 hold 168 a thread, waiting for 240"):
        launch(roles(dec(96), consumers.replace(dec(168), "")), "random", seed=seed)


def test_what_ptxas_ignores_does_nothing() -> None:
    body = roles(dec(160), f"{inc(240)}{dec(256)}")
    assert details(launch(body, directives=".maxntid 384, 1, 1")) == []


@pytest.mark.parametrize(
    ("producer", "consumers", "found"),
    [
        (
            dec(176),
            MET,
            "setmaxnreg.dec to 176 registers a thread, above the 168 that it has",
        ),
        (
            dec(24),
            f"{inc(168)}{MET}{inc(160)}",
            "setmaxnreg.inc to 160 registers a thread, below the 168 that it has",
        ),
    ],
)
def test_a_change_in_the_wrong_direction_is_found(
    producer: str, consumers: str, found: str
) -> None:
    unreached = f"setp.gt.u32 %p3, %r0, 999;\n@!%p3 bra DONE;\n{inc(240)}\nDONE:"
    result = launch(f"{unreached}\n{roles(producer, consumers)}")
    assert details(result) == [found]
    threads = 128 if producer == dec(176) else 256
    assert [finding.count for finding in result.findings] == [2 * threads]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warpgroup_goes_on_when_all_its_warps_have_their_registers(schedule: str) -> None:
    """What the first of two warpgroups gives up is enough for two warps of the third."""
    body = f"@%p2 bra LAST;\n{dec(128)}\nret;\nLAST:\n{inc(240)}\n{PRODUCT}"
    launch(body, schedule, checks=False)  # the operands of the product hold nothing


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_warp_of_a_warpgroup_executes_it(schedule: str) -> None:
    some = f"setp.eq.u32 %p3, %r1, 6;\n@%p3 bra DONE;\n{inc(168)}\nDONE:"
    result = launch(roles(dec(24), some), schedule)
    assert details(result) == ["3 of 4 warps of a warpgroup execute it; all of them must"]
    (finding,) = result.findings
    assert (finding.cta, finding.warp, finding.count) == (0, 4, 2 * 3 * 32)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_lane_of_a_warp_executes_it(schedule: str) -> None:
    some = f"and.b32 %r2, %r0, 31;\nsetp.eq.u32 %p3, %r2, 5;\n@%p3 bra DONE;\n{inc(168)}\nDONE:"
    result = launch(roles(dec(24), some), schedule)
    assert details(result) == ["some lanes of the warp execute it without the others"]
    assert result.findings[0].count == 2 * 256 // 32 * 31


def test_lanes_that_have_ended_need_not_execute_it() -> None:
    body = f"setp.eq.u32 %p3, %r0, 300;\n@%p3 ret;\n{roles(dec(24), inc(240))}"
    assert details(launch(body)) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("between", ["", "bar.warp.sync -1;", "bar.sync 1, 256;"])
def test_warps_meet_between_two_of_them(schedule: str, between: str) -> None:
    body = roles(dec(24), f"{inc(240)}\n{between}\n{dec(200)}")
    unmet = "warps of the warpgroup have not met since the setmaxnreg before"
    assert details(launch(body, schedule)) == ([] if "256" in between else [unmet])


@pytest.mark.parametrize(
    "text",
    [
        "setmaxnreg.dec.sync.aligned.u32 25;",
        "setmaxnreg.inc.sync.aligned.u32 264;",
        "setmaxnreg.inc.sync.aligned.u32 16;",
        "setmaxnreg.inc.sync.aligned.u32 %r0;",
        "@%p1 setmaxnreg.inc.sync.aligned.u32 240;",
        "setmaxnreg.sync.aligned.u32 240;",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(PtxError, match=re.escape(text.rstrip(";"))):
        load_program(f"{HEADER.format(directives=BOUNDS)}{text}\nret;\n}}\n")
