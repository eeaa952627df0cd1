# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Thread
from ptx_emulator.machine.lanes import SHARED_BASE
from ptx_emulator.machine.machine import Machine
from tests.emulator.hopper_machine import each, kinds, make_machine, one_lane

BAR = SHARED_BASE + 512


def machine_with_barrier(count: int, ctas: int = 1) -> Machine:
    machine = make_machine(ctas)
    for cta in range(ctas):
        sel = one_lane(machine, cta=cta)
        machine.mbarriers.init(sel, each(sel, BAR), each(sel, count), None, 0)
    machine.clocks.join_all()
    return machine


def arrive(
    machine: Machine,
    warp: int,
    *,
    count: int | None = None,
    tx: int | None = None,
    cta: int = 0,
    lane: int = 0,
) -> int:
    sel = one_lane(machine, warp, lane, cta)
    counts = None if count is None else each(sel, count)
    bytes_ = None if tx is None else each(sel, tx)
    return int(machine.mbarriers.arrive(sel, each(sel, BAR), bytes_, counts, None, 1)[0])


def ready(machine: Machine, parity: int, cta: int = 0) -> bool:
    sel = one_lane(machine, 3, cta=cta)
    return bool(machine.mbarriers.ready(sel, each(sel, BAR), each(sel, parity), 2)[0])


def test_a_phase_completes_with_its_last_arrival_and_the_next_begins() -> None:
    machine = machine_with_barrier(3)
    assert ready(machine, 1)
    for phase in range(4):
        parity = phase & 1
        for warp in range(3):
            assert not ready(machine, parity)
            assert arrive(machine, warp) == parity
        assert ready(machine, parity)
        assert not ready(machine, parity ^ 1)
    assert kinds(machine) == []


def test_an_arrival_may_count_for_several() -> None:
    machine = machine_with_barrier(5)
    arrive(machine, 0, count=4)
    assert not ready(machine, 0)
    arrive(machine, 1)
    assert ready(machine, 0)


def test_lanes_of_a_warp_arrive_one_by_one() -> None:
    machine = machine_with_barrier(64)
    sel = machine.lanes.warps_of(1, 2)
    machine.mbarriers.arrive(sel, each(sel, BAR), None, None, sel.lane < 20, 1)
    assert not ready(machine, 0)
    machine.mbarriers.arrive(sel, each(sel, BAR), None, None, sel.lane >= 20, 1)
    assert ready(machine, 0)
    assert not ready(machine, 1)


def test_ctas_have_barriers_of_their_own() -> None:
    machine = machine_with_barrier(1, ctas=3)
    arrive(machine, 0, cta=1)
    assert [ready(machine, 0, cta) for cta in range(3)] == [False, True, False]


def test_transaction_bytes_hold_a_phase_open_until_they_land() -> None:
    machine = machine_with_barrier(1)
    landed = []
    barrier = machine.mbarriers.find(Thread(one_lane(machine), 0, 1), np.array([BAR]))
    assert barrier is not None
    arrive(machine, 0, tx=48)
    machine.mbarriers.start_transfer(barrier, 16, 0, 4, lambda: landed.append(16))
    assert not ready(machine, 0)
    machine.mbarriers.start_transfer(barrier, 32, 0, 4, lambda: landed.append(32))
    assert ready(machine, 0)
    assert landed == [16, 32]
    assert kinds(machine) == []


def test_a_transfer_waits_for_arrivals_and_may_come_before_its_expectation() -> None:
    machine = machine_with_barrier(2)
    landed = []
    lane = one_lane(machine)
    barrier = machine.mbarriers.find(Thread(lane, 0, 1), np.array([BAR]))
    assert barrier is not None
    machine.mbarriers.start_transfer(barrier, 16, 0, 4, lambda: landed.append(16))
    machine.mbarriers.expect(lane, each(lane, BAR), each(lane, 16), None, 3)
    arrive(machine, 0)
    assert not ready(machine, 0)
    assert landed == []
    arrive(machine, 1)
    assert ready(machine, 0)
    assert landed == [16]
    assert kinds(machine) == []


def test_what_lands_after_the_phase_is_over_stays_on_its_way() -> None:
    machine = machine_with_barrier(1)
    barrier = machine.mbarriers.find(Thread(one_lane(machine), 0, 1), np.array([BAR]))
    assert barrier is not None
    landed = []
    agent, _ = machine.mbarriers.start_transfer(barrier, 16, 0, 4, lambda: landed.append(1))
    machine.mbarriers.start_transfer(barrier, 16, 0, 4, lambda: landed.append(2))
    arrive(machine, 0, tx=16)
    assert ready(machine, 0)
    assert landed == [1]
    machine.mbarriers.report_unfinished()
    (finding,) = machine.findings.items
    assert (finding.kind, finding.count) == ("bulk-load-unwaited", 1)
    waiter = one_lane(machine, 3)
    machine.mbarriers.acquire(waiter, each(waiter, BAR))
    assert machine.clocks.known(3, alone=True)[0][agent] == 1
    assert machine.clocks.seen[3, agent] == 0  # the other lanes have not waited


def test_more_bytes_than_expected_are_reported_and_the_barrier_sticks() -> None:
    machine = machine_with_barrier(1)
    barrier = machine.mbarriers.find(Thread(one_lane(machine), 0, 1), np.array([BAR]))
    assert barrier is not None
    machine.mbarriers.start_transfer(barrier, 64, 5, 4, lambda: None)
    arrive(machine, 0, tx=48)
    assert not ready(machine, 0)
    (finding,) = machine.findings.items
    assert finding.kind == "mbarrier-transaction"
    assert "16 transaction bytes more" in finding.detail
    assert (finding.lane, finding.address) == (5, BAR)


def test_arrivals_beyond_the_count_are_reported() -> None:
    machine = machine_with_barrier(1)
    arrive(machine, 0, tx=16)
    arrive(machine, 0, tx=16)
    (finding,) = machine.findings.items
    assert finding.kind == "mbarrier-overflow"
    assert "count 1" in finding.detail
    assert "32 transaction bytes" in finding.detail


def test_too_many_transaction_bytes_are_reported() -> None:
    machine = machine_with_barrier(1)
    lane = one_lane(machine)
    machine.mbarriers.expect(lane, each(lane, BAR), each(lane, 1 << 20), None, 3)
    assert kinds(machine) == ["mbarrier-overflow"]


@pytest.mark.parametrize("count", [0, 1 << 20])
def test_a_count_out_of_range_is_reported(count: int) -> None:
    machine = make_machine()
    lane = one_lane(machine)
    machine.mbarriers.init(lane, each(lane, BAR), each(lane, count), None, 0)
    assert kinds(machine) == ["mbarrier-overflow"]


def test_an_uninitialised_barrier_is_reported_wherever_it_is_used() -> None:
    for use in ("arrive", "expect", "wait"):
        machine = make_machine()
        lane = one_lane(machine)
        address = each(lane, BAR)
        if use == "arrive":
            machine.mbarriers.arrive(lane, address, None, None, None, 0)
        elif use == "expect":
            machine.mbarriers.expect(lane, address, each(lane, 8), None, 0)
        else:
            assert not machine.mbarriers.ready(lane, address, each(lane, 0), 0).any()
        assert kinds(machine) == ["mbarrier-uninitialised"]


def test_init_must_be_ordered_before_the_first_use() -> None:
    machine = make_machine()
    lane = one_lane(machine)
    machine.mbarriers.init(lane, each(lane, BAR), each(lane, 1), None, 0)
    arrive(machine, 0)
    assert kinds(machine) == []
    assert ready(machine, 0)
    assert kinds(machine) == ["race"]
    assert machine.findings.items[0].warp == 3


def test_a_live_barrier_is_initialised_once() -> None:
    machine = machine_with_barrier(1)
    lane = one_lane(machine)
    machine.mbarriers.invalidate(lane, each(lane, BAR), None, 5)
    machine.mbarriers.init(lane, each(lane, BAR), each(lane, 2), None, 6)
    assert kinds(machine) == []
    machine.mbarriers.init(lane, each(lane, BAR), each(lane, 2), None, 7)
    assert kinds(machine) == ["mbarrier-reinitialised"]


def test_misplaced_barriers_are_reported() -> None:
    machine = make_machine(smem=1024)
    lane = one_lane(machine)
    machine.mbarriers.init(lane, each(lane, BAR + 4), each(lane, 1), None, 0)
    machine.mbarriers.init(lane, each(lane, SHARED_BASE + 1024), each(lane, 1), None, 1)
    assert kinds(machine) == ["shared-misaligned", "shared-out-of-bounds"]


def test_a_wait_acquires_what_arrivals_released_and_no_more() -> None:
    machine = machine_with_barrier(1)
    writer, reader = machine.lanes.warps_of(0, 1), machine.lanes.warps_of(3, 1)
    address = (SHARED_BASE + 4 * writer.lane).astype(np.uint32)
    machine.shared.store(writer, address, 4, [address], None, 10)
    machine.clocks.sync_warp(writer)
    arrive(machine, 0)
    machine.shared.store(writer, address + 128, 4, [address], None, 11)
    assert machine.mbarriers.ready(reader, each(reader, BAR), each(reader, 0), 2).all()
    machine.mbarriers.acquire(reader, each(reader, BAR))
    machine.shared.load(reader, address, 4, 1, None, 12)
    assert kinds(machine) == []
    machine.shared.load(reader, address + 128, 4, 1, None, 13)
    assert kinds(machine) == ["race"]


@pytest.mark.parametrize("everyone", [False, True])
def test_one_lane_arrives_for_what_it_did_itself(everyone: bool) -> None:
    """What its warp did it releases only behind a __syncwarp."""
    machine = machine_with_barrier(1)
    writer = machine.lanes.warps_of(0, 1) if everyone else one_lane(machine)
    reader = machine.lanes.warps_of(3, 1)
    address = (SHARED_BASE + 4 * writer.lane).astype(np.uint32)
    machine.shared.store(writer, address, 4, [address], None, 10)
    arrive(machine, 0)
    assert machine.mbarriers.ready(reader, each(reader, BAR), each(reader, 0), 2).all()
    machine.mbarriers.acquire(reader, each(reader, BAR))
    machine.shared.load(reader, each(reader, SHARED_BASE), 4, 1, None, 12)
    assert kinds(machine) == (["race"] if everyone else [])


@pytest.mark.parametrize("synced", [False, True])
def test_one_lane_waits_for_its_warp(synced: bool) -> None:
    machine = machine_with_barrier(32)
    writer, reader = machine.lanes.warps_of(0, 1), machine.lanes.warps_of(3, 1)
    address = (SHARED_BASE + 4 * writer.lane).astype(np.uint32)
    machine.shared.store(writer, address, 4, [address], None, 10)
    machine.mbarriers.arrive(writer, each(writer, BAR), None, None, None, 11)
    waiter = one_lane(machine, 3)
    assert machine.mbarriers.ready(waiter, each(waiter, BAR), each(waiter, 0), 2).all()
    machine.mbarriers.acquire(waiter, each(waiter, BAR))
    machine.shared.load(waiter, each(waiter, SHARED_BASE), 4, 1, None, 12)
    assert kinds(machine) == []
    if synced:
        machine.clocks.sync_warp(reader)
    machine.shared.load(reader, address, 4, 1, None, 13)
    assert kinds(machine) == ([] if synced else ["race"])


def test_a_deadlock_is_described_by_barrier_and_count() -> None:
    machine = machine_with_barrier(3, ctas=2)
    arrive(machine, 0, tx=64)
    sel = machine.lanes.warps_of(2, 2)
    address = np.where(sel.warp == 2, BAR, BAR + 8).astype(np.uint32)
    first, second = machine.mbarriers.describe_waiters(sel, address, each(sel, 0))
    assert "2 warps, the first being warp 2 of CTA 0, wait for parity 0" in first
    assert f"{BAR:#x}" in first
    assert "phase 0 is open, 2 of 3 arrivals pending, 64 transaction bytes expected" in first
    assert "warp 3 of CTA 0" in second
    assert "never initialised" in second


def test_there_is_room_for_so_many_barriers() -> None:
    machine = make_machine()
    lane = one_lane(machine)
    for index in range(64):
        machine.mbarriers.init(lane, each(lane, BAR + 8 * index), each(lane, 1), None, 0)
    with pytest.raises(EmulatorError, match="64 mbarriers"):
        machine.mbarriers.init(lane, each(lane, BAR - 8), each(lane, 1), None, 0)
