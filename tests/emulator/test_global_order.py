# SPDX-License-Identifier: Apache-2.0
"""Threads that meet in global memory: what orders them, and what is found where nothing does."""

from __future__ import annotations

import pytest

from ptx_emulator import SCHEDULES
from tests.emulator.snippets import run_body

CTA_CONFLICT = "cta-write-conflict"
NEXT_CTA = "xor.b32 %r5, %r3, 64; mul.wide.u32 %rd5, %r5, 4; add.s64 %rd5, %rd0, %rd5;"
NEXT_WARP = NEXT_CTA.replace("%r3, 64", "%r3, 32")
NEXT_LANE = NEXT_CTA.replace("%r3, 64", "%r3, 1")
STORE = "st.global.u32 [%rd3], %r3;"
LOAD = "ld.global.u32 %r10, [%rd5]; st.global.u32 [%rd4], %r10;"


def kinds(body: str, schedule: str = "lockstep") -> list[str]:
    return sorted({finding.kind for finding in run_body(body, schedule=schedule)[1].findings})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("neighbour", "order", "kind"),
    [
        (NEXT_LANE, "", "intra-warp-race"),
        (NEXT_LANE, "bar.warp.sync -1;", None),
        (NEXT_WARP, "bar.warp.sync -1;", "race"),
        (NEXT_WARP, "membar.gl;", "race"),
        (NEXT_WARP, "bar.sync 0;", None),
        (NEXT_CTA, "bar.sync 0;", CTA_CONFLICT),
        (NEXT_CTA, "membar.gl; bar.sync 0;", CTA_CONFLICT),
    ],
)
def test_reads_of_what_neighbours_store(
    neighbour: str, order: str, kind: str | None, schedule: str
) -> None:
    found = kinds(f"{neighbour} {STORE} {order} {LOAD}", schedule)
    assert found == ([] if kind is None else [kind])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stores_over_what_neighbours_read(schedule: str) -> None:
    read = "ld.global.u32 %r10, [%rd5];"
    assert kinds(f"{NEXT_LANE} {read} {STORE}", schedule) == ["intra-warp-race"]
    assert kinds(f"{NEXT_LANE} {read} bar.warp.sync -1; {STORE}", schedule) == []
    assert kinds(f"{NEXT_WARP} {read} {STORE}", schedule) == ["race"]
    assert kinds(f"{NEXT_WARP} {read} bar.sync 0; {STORE}", schedule) == []
    assert kinds(f"{NEXT_CTA} {read} bar.sync 0; {STORE}", schedule) == [CTA_CONFLICT]


def test_the_two_accesses_are_named() -> None:
    (finding,) = run_body(f"{NEXT_WARP} {STORE} {LOAD}")[1].findings
    assert "that CTA 0 warp 1 lane 0 wrote, with no barrier in between" in finding.detail
    assert finding.ptx_line is not None
    assert finding.other_ptx_line is not None


def test_data_that_the_kernel_writes_is_not_read_only() -> None:
    body = f"{STORE} bar.sync 0; ld.global.nc.u32 %r10, [%rd3]; st.global.u32 [%rd4], %r10;"
    assert kinds(body) == ["read-only-load"]
    assert kinds("ld.global.nc.u32 %r10, [%rd4]; st.global.u32 [%rd3], %r10;") == []


FIRST = "setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r1, 0;"


def test_a_store_beside_atomics() -> None:
    add = "red.global.add.u32 [%rd0], 1;"
    assert kinds(f"{FIRST} {add}") == []
    assert CTA_CONFLICT in kinds(f"{FIRST} {add} @%p1 st.global.u32 [%rd0], 0;")
    assert CTA_CONFLICT in kinds(f"{FIRST} @%p1 st.global.u32 [%rd0], 0; bar.sync 0; {add}")
    assert (
        kinds(f"{FIRST} @%p1 red.global.add.u32 [%rd0], 1; ld.volatile.global.u32 %r9, [%rd0];")
        == []
    )
    one_cta = "@!%p2 bra END; {} END:"
    alone = one_cta.format(f"@%p1 st.global.u32 [%rd0], 0; {add}")
    assert kinds(f"{FIRST} {alone}") == ["intra-warp-race", "race"]
    ordered = one_cta.format(f"@%p1 st.global.u32 [%rd0], 0; bar.sync 0; {add}")
    assert kinds(f"{FIRST} {ordered}") == []


def test_atomics_of_cta_scope_do_not_reach_another_cta() -> None:
    assert kinds("red.relaxed.cta.global.add.u32 [%rd0], 1;") == [CTA_CONFLICT]
    assert kinds("red.relaxed.gpu.global.add.u32 [%rd0], 1;") == []


def handed_over(write: str, read: str, *, before: str = "", behind: str = "") -> str:
    """CTA 0 stores its words and raises a flag, `in[0]`; CTA 1 waits for it, and loads them."""
    return f"""{FIRST} {NEXT_CTA} @!%p2 bra READER;
    {STORE} {before} bar.sync 0; mov.u32 %r9, 1;
    @%p1 {write} [%rd1], %r9;
    bra END;
    READER: @!%p1 bra BEHIND;
    SPIN: {read} %r9, [%rd1]; setp.eq.u32 %p3, %r9, 0; @%p3 bra SPIN;
    {behind}
    BEHIND: bar.sync 0; ld.global.u32 %r10, [%rd5]; st.global.u32 [%rd3], %r10;
    END:"""


RELEASE, ACQUIRE = "st.release.gpu.global.u32", "ld.acquire.gpu.global.u32"
VOLATILE = ("st.volatile.global.u32", "ld.volatile.global.u32")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("body", "right"),
    [
        (handed_over(RELEASE, ACQUIRE), True),
        (handed_over("red.release.gpu.global.add.u32", ACQUIRE), True),
        (handed_over(*VOLATILE, before="membar.gl;", behind="membar.gl;"), True),
        (handed_over(RELEASE, "ld.relaxed.gpu.global.u32", behind="fence.acq_rel.gpu;"), True),
        (handed_over("st.relaxed.gpu.global.u32", ACQUIRE, before="fence.acq_rel.sys;"), True),
        (handed_over(*VOLATILE), False),
        (handed_over(*VOLATILE, before="membar.gl;"), False),
        (handed_over(*VOLATILE, behind="membar.gl;"), False),
        (handed_over(*VOLATILE, before="membar.cta;", behind="membar.gl;"), False),
        (handed_over(*VOLATILE, before="membar.gl;", behind="membar.cta;"), False),
        (handed_over("st.release.cta.global.u32", ACQUIRE), False),
        (handed_over(RELEASE, "ld.acquire.cta.global.u32"), False),
    ],
)
def test_a_flag_orders_two_ctas(body: str, right: bool, schedule: str) -> None:
    out, result = run_body(body, schedule=schedule)
    assert out[64:].tolist() == list(range(64))
    assert [finding.kind for finding in result.findings] == ([] if right else [CTA_CONFLICT])


def test_a_plain_flag_is_a_race_itself() -> None:
    body = handed_over("st.global.u32", ACQUIRE, before="membar.gl;")
    assert kinds(body) == [CTA_CONFLICT]


def test_a_flag_orders_warps_of_one_cta_behind_fences_of_the_cta() -> None:
    for fence, found in (("membar.cta;", []), ("", ["race"])):
        body = f"""setp.lt.u32 %p1, %r0, 32; {NEXT_WARP} shl.b32 %r6, %r1, 2; cvt.u64.u32 %rd6, %r6;
        add.s64 %rd6, %rd1, %rd6; mov.u32 %r9, 1; @!%p1 bra READER;
        {STORE} {fence} bar.warp.sync -1; and.b32 %r7, %r0, 31; setp.eq.u32 %p2, %r7, 0;
        @%p2 st.volatile.global.u32 [%rd6], %r9; bra END;
        READER: ld.volatile.global.u32 %r9, [%rd6]; setp.eq.u32 %p3, %r9, 0; @%p3 bra READER;
        {fence} ld.global.u32 %r10, [%rd5]; st.global.u32 [%rd3], %r10;
        END:"""
        assert kinds(body) == found


def test_warps_of_a_cta_may_store_the_same() -> None:
    assert kinds("@!%p2 bra END; st.global.u32 [%rd0], 7; END:".join((FIRST, ""))) == []
    differing = f"{FIRST} @!%p2 bra END; st.global.u32 [%rd0], %r0; END:"
    assert kinds(differing) == ["race"]


FILL = "st.shared.v4.u32 [%r5], {%r1, %r1, %r1, %r1}; fence.proxy.async.shared::cta;"
COMPLETE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
BULK_STORE = f"{FILL} cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r5], 16; {COMPLETE}"
BULK_ADD = f"""{FILL}
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r5], 16; {COMPLETE}"""
THREAD_STORE = "st.global.u32 [%rd0], 0;"
THREAD_LOAD = "ld.global.u32 %r10, [%rd0];"
FENCE = "fence.proxy.async.global;"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("first", "before", "behind", "second", "right"),
    [
        (BULK_STORE, FENCE, FENCE, BULK_ADD, True),
        (BULK_STORE, "fence.proxy.async;", "fence.proxy.async;", BULK_ADD, True),
        (BULK_STORE, "", FENCE, BULK_ADD, False),
        (BULK_STORE, FENCE, "", BULK_ADD, False),
        (BULK_STORE, "fence.proxy.async.shared::cta;", FENCE, BULK_ADD, False),
        (BULK_STORE, FENCE, "", THREAD_LOAD, True),
        (BULK_STORE, "", FENCE, THREAD_LOAD, False),
        (THREAD_STORE, "", FENCE, BULK_ADD, True),
        (THREAD_STORE, FENCE, "", BULK_ADD, False),
        (THREAD_STORE, "", "", THREAD_LOAD, True),
    ],
)
def test_a_flag_orders_bulk_copies_behind_fences_between_proxies(
    first: str, before: str, behind: str, second: str, right: bool, schedule: str
) -> None:
    body = f"""{FIRST} mov.u32 %r5, buffer; @!%p1 bra END; @!%p2 bra READER;
    {first} {before} {RELEASE} [%rd1], 1; bra END;
    READER: {ACQUIRE} %r9, [%rd1]; setp.eq.u32 %p3, %r9, 0; @%p3 bra READER;
    {behind} {second}
    END:"""
    assert kinds(body, schedule) == ([] if right else [CTA_CONFLICT])
