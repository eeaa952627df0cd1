# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import EmulatorError, GlobalMemory
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.machine import Machine
from ptx_emulator.machine.storage import storage
from tests.emulator.machine.machines import COPY, LOAD, addresses, kinds, make_machine, warp

POISON = int(storage.POISON)
SOURCE = np.arange(1, 4097, dtype=np.uint32)


class Bench:
    """A machine beside a source in global memory."""

    def __init__(self, ctas: int = 1, warps: int = 1) -> None:
        self.memory = GlobalMemory()
        self.source = self.memory.alloc(SOURCE)
        self.machine: Machine = make_machine(ctas, warps, memory=self.memory)

    def copy(
        self,
        sel: Selection,
        to: int,
        nbytes: int = 16,
        source_bytes: int | np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> None:
        """Lane by lane, `nbytes` each, from the start of the source."""
        src = (sel.lane * nbytes + self.source).astype(np.uint64)
        dst = addresses(sel, to + sel.lane * nbytes)
        self.machine.copies.issue(sel, dst, src, nbytes, source_bytes, mask, COPY)

    def words(self, start: int, count: int, cta: int = 0) -> list[int]:
        first = (cta * self.machine.shared_stride + start) // 4
        return [int(word) for word in self.machine.shared.words[first : first + count]]


@pytest.mark.parametrize("nbytes", [4, 8, 16])
def test_data_lands_at_the_wait_and_not_before(nbytes: int) -> None:
    bench = Bench(ctas=2)
    lanes = bench.machine.lanes.all
    count = 32 * nbytes // 4
    bench.copy(lanes, 0, nbytes)
    bench.machine.copies.commit(lanes)
    assert bench.words(0, count, cta=1) == [POISON] * count
    bench.machine.copies.wait(lanes, 0)
    for cta in (0, 1):
        assert bench.words(0, count, cta) == SOURCE[:count].tolist()
    assert bench.machine.copies.unfinished() == 0


def test_older_data_is_gone_once_the_copy_is_issued() -> None:
    bench = Bench()
    lanes = bench.machine.lanes.all
    bench.machine.shared.words[:] = 7
    bench.copy(lanes, 0)
    assert bench.words(0, 130) == [POISON] * 128 + [7, 7]


def test_wait_group_leaves_the_newest_groups_in_flight() -> None:
    bench = Bench()
    lanes = bench.machine.lanes.all
    for group in range(3):
        bench.copy(lanes, 512 * group)
        bench.machine.copies.commit(lanes)
    bench.copy(lanes, 512 * 3)  # not committed
    for pending, landed in ((3, 0), (2, 1), (1, 2), (0, 3)):
        bench.machine.copies.wait(lanes, pending)
        there = [bench.words(512 * group, 1)[0] == 1 for group in range(4)]
        assert there == [group < landed for group in range(4)]
    assert bench.machine.copies.unfinished() == 32


def test_an_empty_group_counts() -> None:
    bench = Bench()
    lanes = bench.machine.lanes.all
    bench.copy(lanes, 0)
    bench.machine.copies.commit(lanes)
    bench.machine.copies.commit(lanes)
    bench.machine.copies.wait(lanes, 1)
    assert bench.words(0, 1) == [1]


def test_groups_belong_to_their_warp_and_lane() -> None:
    bench = Bench(warps=2)
    first, second = (warp(bench.machine, number) for number in (0, 1))
    bench.copy(first, 0)
    bench.copy(second, 512)
    bench.machine.copies.commit(bench.machine.lanes.all)
    bench.machine.copies.wait(second, 0)
    assert (bench.words(0, 1), bench.words(512, 1)) == ([POISON], [1])
    low, high = (bench.machine.lanes.part(first, (first.lane < 16) == k) for k in (True, False))
    bench.copy(low, 1024)
    bench.machine.copies.commit(low)
    bench.machine.copies.wait(high, 0)  # has one group: the one of all lanes
    assert bench.words(0, 128)[64:] == SOURCE[64:128].tolist()
    assert bench.words(0, 64) == [POISON] * 64
    bench.machine.copies.wait(low, 1)
    assert bench.words(0, 128) == SOURCE[:128].tolist()
    assert bench.words(1024, 1) == [POISON]


@pytest.mark.parametrize("nbytes", [4, 8, 16])
def test_zero_fill(nbytes: int) -> None:
    bench = Bench()
    lanes = bench.machine.lanes.all
    given = (lanes.lane % (nbytes + 1)).astype(np.uint32)
    bench.copy(lanes, 0, nbytes, given)
    bench.machine.copies.commit(lanes)
    bench.machine.copies.wait(lanes, 0)
    expected = SOURCE[: 8 * nbytes].view(np.uint8).reshape(32, nbytes).copy()
    for lane in range(32):
        expected[lane, given[lane] :] = 0
    got = bench.machine.shared.bytes[: 32 * nbytes].reshape(32, nbytes)
    assert (got == expected).all()
    assert kinds(bench.machine) == []


@pytest.mark.parametrize("source_bytes", [0, 4, 16])
def test_zero_fill_by_a_constant_reads_no_further(source_bytes: int) -> None:
    memory = GlobalMemory()
    source = memory.alloc(np.array([5], np.uint32))  # 4 bytes: no more may be read
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    src = np.full(32, source, np.uint64)
    machine.copies.issue(
        lanes, addresses(lanes, lanes.lane * 16), src, 16, source_bytes, None, COPY
    )
    machine.copies.commit(lanes)
    machine.copies.wait(lanes, 0)
    found = ["global-out-of-bounds"] if source_bytes == 16 else []
    assert kinds(machine) == found
    if source_bytes < 16:
        assert machine.shared.words[:4].tolist() == [5 if source_bytes else 0, 0, 0, 0]


def test_a_masked_copy_touches_nothing() -> None:
    bench = Bench()
    lanes = bench.machine.lanes.all
    bench.machine.shared.words[:] = 7
    bench.copy(lanes, 0, mask=lanes.lane < 2)
    bench.machine.copies.commit(lanes)
    bench.machine.copies.wait(lanes, 0)
    assert bench.words(0, 9) == [*range(1, 9), 7]


@pytest.mark.parametrize("step", ["wait", "commit", "barrier"])
def test_data_needs_a_commit_a_wait_and_a_barrier(step: str) -> None:
    bench = Bench(warps=2)
    machine, lanes = bench.machine, bench.machine.lanes.all
    bench.copy(warp(machine, 0), 0)
    if step != "commit":
        machine.copies.commit(lanes)
    if step != "wait":
        machine.copies.wait(lanes, 0)
    if step != "barrier":
        machine.clocks.join_all()
    reader = warp(machine, 1)
    machine.shared.load(reader, addresses(reader, reader.lane * 16), 4, 4, None, LOAD)
    (finding,) = machine.findings.items
    assert finding.kind == "race"
    assert "cp.async of warp 0" in finding.detail
    assert finding.other_source == "places.cu:12"


def test_data_that_was_committed_waited_for_and_ordered_is_clean() -> None:
    bench = Bench(warps=2)
    machine, lanes = bench.machine, bench.machine.lanes.all
    bench.copy(warp(machine, 0), 0)
    machine.copies.commit(lanes)
    machine.copies.wait(lanes, 0)
    own = warp(machine, 0)
    machine.shared.load(own, addresses(own, own.lane * 16), 4, 4, None, LOAD)
    assert kinds(machine) == []  # every lane may read what it copied itself
    machine.shared.load(own, addresses(own, 496 - own.lane * 16), 4, 4, None, LOAD)
    assert kinds(machine) == ["intra-warp-race"]
    machine.findings._found.clear()
    machine.clocks.join_all()
    for number in (0, 1):
        reader = warp(machine, number)
        machine.shared.load(reader, addresses(reader, 496 - reader.lane * 16), 4, 4, None, LOAD)
    assert kinds(machine) == []


def test_a_second_copy_to_the_same_place_needs_a_wait() -> None:
    bench = Bench()
    lanes = bench.machine.lanes.all
    bench.copy(lanes, 0)
    bench.machine.copies.commit(lanes)
    bench.copy(lanes, 0)
    assert kinds(bench.machine) == ["race"]


def test_a_kernel_that_ends_with_copies_in_flight() -> None:
    bench = Bench(warps=2)
    lanes = bench.machine.lanes.all
    bench.copy(lanes, 0, nbytes=4, mask=lanes.lane < 4)
    bench.machine.copies.commit(lanes)
    bench.machine.copies.report_unfinished()
    (finding,) = bench.machine.findings.items[-1:]
    assert (finding.kind, finding.count) == ("cp-async-unwaited", 8)
    assert finding.source == "places.cu:12"
    bench.machine.copies.wait(lanes, 0)
    bench.machine.copies.report_unfinished()
    assert bench.machine.findings.items[-1].count == 8


def test_other_sizes_are_refused() -> None:
    bench = Bench()
    with pytest.raises(EmulatorError, match="4, 8 or 16 bytes, not 32"):
        bench.copy(bench.machine.lanes.all, 0, nbytes=32)
