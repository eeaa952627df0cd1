# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from ptx_emulator.machine.access import Access, Thread
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.machine import Machine
from tests.emulator.machine.machines import LOAD, STORE, kinds, make_machine, warp

BEYOND = 1000  # instruction numbers that are not in the program


def write(machine: Machine, sel: Selection, start: int, nbytes: int = 4, pc: int = STORE) -> None:
    offsets = start + sel.lane * nbytes + sel.cta * machine.shared_stride
    machine.shared.check_write(Access(sel, offsets, nbytes, None, pc, "store"))


def read(
    machine: Machine,
    sel: Selection,
    start: int,
    nbytes: int = 4,
    pc: int = LOAD,
    shift: int = 0,
    collective: bool = False,
) -> None:
    """Every lane reads what the lane `shift` further on writes with `write`."""
    offsets = start + (sel.lane + shift) % 32 * nbytes + sel.cta * machine.shared_stride
    machine.shared.check_read(Access(sel, offsets, nbytes, None, pc, "load"), collective)


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("order", ["read-after-write", "write-after-write", "write-after-read"])
@pytest.mark.parametrize("synchronised", [False, True])
def test_conflicts_between_warps_need_a_barrier(
    nbytes: int, order: str, synchronised: bool
) -> None:
    machine = make_machine(ctas=2, warps=2)
    first, second = warp(machine, 0), warp(machine, 1)
    if order == "write-after-read":
        write(machine, first, 0, nbytes)
        machine.clocks.join_all()
        read(machine, first, 0, nbytes, pc=3)
    else:
        write(machine, first, 0, nbytes, pc=3)
    if synchronised:
        machine.clocks.join_all()
    else:
        machine.clocks.sync_warp(first)
        machine.clocks.sync_warp(second)
    if order == "read-after-write":
        read(machine, second, 0, nbytes, pc=4)
    else:
        write(machine, second, 0, nbytes, pc=4)
    assert kinds(machine) == ([] if synchronised else ["race"])
    if not synchronised:
        (finding,) = machine.findings.items
        assert (finding.warp, finding.count) == (1, 64)
        assert "warp 0" in finding.detail
        assert (finding.source, finding.other_source) == ("places.cu:14", "places.cu:13")


def test_the_other_cta_is_another_memory() -> None:
    machine = make_machine(ctas=2, warps=1)
    lanes = machine.lanes
    write(machine, lanes.select(slice(0, 32)), 0)
    read(machine, lanes.select(slice(32, 64)), 0)
    assert kinds(machine) == ["uninitialised-shared"]


def test_two_warps_that_write_at_once() -> None:
    for nbytes in (4, 16):
        machine = make_machine(warps=2)
        write(machine, machine.lanes.all, 0, nbytes)
        (finding,) = machine.findings.items
        assert finding.kind == "race"
        assert finding.count == 32  # one of the two warps came last and sees nothing


def test_neighbours_inside_a_word_do_not_conflict() -> None:
    machine = make_machine(warps=2)
    for number in (0, 1):
        sel = warp(machine, number)
        offsets = sel.lane * 4 + 2 * number
        machine.shared.check_write(Access(sel, offsets, 2, None, STORE, "store"))
        machine.shared.check_read(Access(sel, offsets, 2, None, LOAD, "load"))
    assert kinds(machine) == []
    sel = warp(machine, 1)
    machine.shared.check_read(Access(sel, sel.lane * 4, 4, None, 3, "load"))
    assert kinds(machine) == ["race"]


@pytest.mark.parametrize("nbytes", [4, 16])
@pytest.mark.parametrize("collective", [False, True])
def test_lanes_of_a_warp_need_a_syncwarp(nbytes: int, collective: bool) -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    write(machine, lanes, 0, nbytes, pc=3)
    if not collective:
        read(machine, lanes, 0, nbytes)
        assert kinds(machine) == []  # every lane read what it wrote itself
    read(machine, lanes, 0, nbytes, shift=1, collective=collective)
    (finding,) = machine.findings.items
    assert finding.kind == "intra-warp-race"
    assert finding.other_source == "places.cu:13"
    synced = make_machine()
    write(synced, synced.lanes.all, 0, nbytes)
    synced.clocks.sync_warp(synced.lanes.all)
    read(synced, synced.lanes.all, 0, nbytes, shift=1, collective=collective)
    assert kinds(synced) == []


@pytest.mark.parametrize("nbytes", [4, 16])
@pytest.mark.parametrize(
    ("reads", "found"),
    [
        ((0,), []),  # of the lane itself
        ((1,), ["intra-warp-race"]),
        ((0, 1), ["intra-warp-race"]),
        ((1, 0), ["intra-warp-race"]),  # the last reader is the writer, the one before is not
        ((1, "sync"), []),
        ((1, "sync", 0), []),
        (("collective",), []),  # ldmatrix has the whole warp wait
        (("elsewhere", "collective"), []),
    ],
)
def test_overwriting_what_other_lanes_read_needs_a_syncwarp(
    nbytes: int, reads: tuple[int | str, ...], found: list[str]
) -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    write(machine, lanes, 0, nbytes)
    machine.clocks.sync_warp(lanes)
    for step in reads:
        if step == "sync":
            machine.clocks.sync_warp(lanes)
        elif step == "collective":
            read(machine, lanes, 0, 16, shift=1, collective=True)
        elif step == "elsewhere":
            read(machine, lanes, 1024, nbytes)
        else:
            read(machine, lanes, 0, nbytes, shift=int(step))
    machine.findings._found.clear()
    write(machine, lanes, 0, nbytes, pc=4)
    assert kinds(machine) == found


def test_lanes_that_read_the_same_word_at_once_count_as_several() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    write(machine, lanes, 0)
    machine.clocks.sync_warp(lanes)
    machine.shared.check_read(Access(lanes, np.zeros(32, np.int64), 4, None, LOAD, "load"))
    last = lanes.lane == 31  # the last lane to be recorded as reader writes
    machine.shared.check_write(Access(lanes, np.zeros(32, np.int64), 4, last, STORE, "store"))
    assert kinds(machine) == ["intra-warp-race"]


@dataclass
class Byte:
    """What a byte of the reference remembers."""

    writer: tuple[int, int, int] | None = None  # agent, epoch, lane
    reads: dict[int, int] = field(default_factory=dict)  # by warp, the newest epoch


@dataclass
class Reference:
    """The detector by its definition, byte by byte and lane by lane, on the same clocks."""

    machine: Machine
    bytes: dict[int, Byte] = field(default_factory=dict)

    def access(
        self, sel: Selection, offsets: np.ndarray, nbytes: int, on: np.ndarray, writes: bool
    ) -> set[str]:
        clocks, found = self.machine.clocks, set()
        for lane in np.flatnonzero(on):
            warp_id, number = int(sel.warp_id[lane]), int(sel.warp[lane])
            seen, lanes = clocks.seen[warp_id], clocks.seen_by_lanes[warp_id]
            for place in range(int(offsets[lane]), int(offsets[lane]) + nbytes):
                byte = self.bytes.setdefault(place, Byte())
                if byte.writer is None:
                    found |= set() if writes else {"uninitialised-shared"}
                else:
                    agent, epoch, by = byte.writer
                    if epoch > seen[agent]:
                        found.add("race")
                    elif not writes and agent == number and by != lane and epoch > lanes[agent]:
                        found.add("intra-warp-race")
                if writes and any(epoch > seen[who] for who, epoch in byte.reads.items()):
                    found.add("race")
        for lane in np.flatnonzero(on):
            number = int(sel.warp[lane])
            epoch = int(clocks.seen[int(sel.warp_id[lane]), number])
            for place in range(int(offsets[lane]), int(offsets[lane]) + nbytes):
                if writes:
                    self.bytes[place].writer = number, epoch, int(sel.lane[lane])
                else:
                    self.bytes[place].reads[number] = epoch
        return found


@pytest.mark.parametrize("seed", range(12))
def test_random_accesses_against_the_definition(seed: int) -> None:
    """Chunks, split chunks, words and bytes must say what a plain table of bytes says."""
    rng = np.random.default_rng(seed)
    machine = make_machine(warps=3, shared=2048)
    reference = Reference(machine)
    sizes = [4, 8, 16] if seed % 2 else [1, 2, 4, 8, 16]
    verdicts: Counter[str] = Counter()
    for step in range(120):
        number = int(rng.integers(3))
        sel = warp(machine, number)
        action = rng.choice(
            ["write", "read", "barrier", "pair", "syncwarp"], p=[0.35, 0.4, 0.1, 0.05, 0.1]
        )
        if action == "barrier":
            machine.clocks.join_all()
        elif action == "pair":
            machine.clocks.join(np.array([number, (number + 1) % 3]))
        elif action == "syncwarp":
            machine.clocks.sync_warp(sel)
        else:
            nbytes = int(rng.choice(sizes))
            order = rng.permutation(32) if rng.random() < 0.3 else sel.lane
            offsets = int(rng.integers(0, 6)) * 64 + order.astype(np.int64) * nbytes
            on = rng.random(32) < rng.choice([0.5, 1.0])
            before = len(machine.findings)
            pc = BEYOND + step
            if action == "write":
                machine.shared.check_write(Access(sel, offsets, nbytes, on, pc, "store"))
            else:
                machine.shared.check_read(Access(sel, offsets, nbytes, on, pc, "load"))
            expected = reference.access(sel, offsets, nbytes, on, action == "write")
            found = set(kinds(machine)[before:])
            if action == "write":
                found.discard("intra-warp-race")  # writes over reads: not in the definition here
            assert found == expected, f"step {step}: {action} of {nbytes} bytes by warp {number}"
            verdicts.update(expected or {"clean"})
    assert min(verdicts["clean"], verdicts["race"], verdicts["intra-warp-race"]) > 0


def engine_write(machine: Machine, begin: int, end: int, epoch: int, pc: int = STORE) -> None:
    sel = warp(machine, 0)
    agent = machine.clocks.barrier_agent(0)
    machine.shared.engine_write(Thread(sel, 0, pc), begin, end, agent, epoch)


def engine_read(machine: Machine, number: int, chunks: range, epoch: int, pc: int = LOAD) -> None:
    sel = warp(machine, number)
    agents = np.array([machine.clocks.bulk_agent(number)])
    machine.shared.engine_read(
        np.array([chunks]), np.array([[number]]), agents, np.array([epoch]), sel, pc
    )


def test_a_bulk_load_must_be_waited_for() -> None:
    machine = make_machine(warps=2)
    engine_write(machine, 0, 512, epoch=1, pc=3)
    reader = warp(machine, 1)
    read(machine, reader, 0, 16, collective=True)
    (finding,) = machine.findings.items
    assert finding.kind == "race"
    assert "mbarrier slot 0" in finding.detail
    visible = np.zeros(machine.clocks.num_agents, np.int32)
    visible[machine.clocks.barrier_agent(0)] = 1
    machine.clocks.acquire(1, np.stack((visible, visible)), whole_warp=True)
    read(machine, reader, 0, 16, pc=4, collective=True)
    assert len(machine.findings) == 1


def test_a_bulk_load_over_what_warps_or_engines_still_read() -> None:
    machine = make_machine(warps=2)
    write(machine, warp(machine, 1), 0, 16)
    machine.clocks.join_all()
    machine.clocks.fence_proxy(warp(machine, 1))
    engine_read(machine, 1, range(8, 16), epoch=1, pc=3)
    read(machine, warp(machine, 1), 0, 16, pc=2)
    machine.clocks.join_all()  # orders the read of warp 1, not that of its engine
    engine_write(machine, 0, 8 * 16, epoch=1)
    assert kinds(machine) == []
    engine_write(machine, 8 * 16, 9 * 16, epoch=2)
    (finding,) = machine.findings.items
    assert "read by a bulk store of warp 1" in finding.detail
    assert finding.other_source == "places.cu:13"
    read(machine, warp(machine, 1), 256, 16, pc=1, collective=True)
    engine_write(machine, 256, 512, epoch=3, pc=4)
    assert "read by warp 1" in machine.findings.items[-1].detail


@pytest.mark.parametrize("nbytes", [4, 16])
def test_engines_need_a_proxy_fence_for_what_warps_write(nbytes: int) -> None:
    machine = make_machine(warps=2)
    write(machine, warp(machine, 1), 0, nbytes, pc=3)
    chunks = range(32 * nbytes // 16)
    engine_read(machine, 0, chunks, epoch=1)
    assert kinds(machine) == ["race"]
    machine.clocks.join_all()
    engine_read(machine, 0, chunks, epoch=2)
    assert kinds(machine) == ["race", "missing-proxy-fence"]
    assert "fence.proxy.async" in machine.findings.items[-1].detail
    machine.findings._found.clear()
    machine.clocks.fence_proxy(warp(machine, 0))
    engine_read(machine, 0, chunks, epoch=3)
    assert kinds(machine) == []
    write(machine, warp(machine, 0), 0, nbytes, pc=4)  # later than the fence
    engine_read(machine, 0, chunks, epoch=4)
    assert kinds(machine)[-1] == "missing-proxy-fence"


def test_engines_find_what_was_never_written() -> None:
    machine = make_machine()
    engine_read(machine, 0, range(4), epoch=1)
    assert kinds(machine) == ["uninitialised-shared"]
