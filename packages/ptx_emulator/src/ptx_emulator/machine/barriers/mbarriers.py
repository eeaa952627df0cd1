# SPDX-License-Identifier: Apache-2.0
"""mbarrier objects: arrivals, transaction bytes, and what a completed phase makes visible."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Access, Mask, Thread, alike, alone_among, executing
from ptx_emulator.machine.barriers.waits import Wait, by_warp_and_address, warps_by_cta
from ptx_emulator.machine.clusters import WINDOW
from ptx_emulator.machine.lanes import Ints, Selection
from ptx_emulator.machine.launch.clocks import Released
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.shared import SharedMemory

Array = NDArray[Any]

OBJECT_BYTES = 8
MAX_COUNT = (1 << 20) - 1
MAX_BARRIERS = 64
MOST_KNOWN = 512  # selections


@dataclass(frozen=True)
class Transfer:
    """An asynchronous write that completes transaction bytes of a barrier when it lands."""

    nbytes: int
    epoch: int
    lane: int
    pc: int
    land: Callable[[], None]


@dataclass
class Barrier:
    """One mbarrier of one CTA.

    `released` gathers what arriving warps and landed transfers make visible; it becomes `visible`
    when the phase completes. Both hold the views of a clock.
    """

    address: int
    slot: int
    count: int
    pending: int
    initialised_by: tuple[int, int, int]  # agent, its epoch, pc
    fenced: bool  # whether copy engines may use it
    visible: Released
    released: Released
    phase: int = 0
    tx: int = 0
    announced: int = 0  # bytes of the phase in progress
    arrived: int = 0
    issued: int = 0
    transfers: deque[Transfer] = field(default_factory=deque)

    @property
    def parity(self) -> int:
        """Parity of the phase in progress; a wait for the other one passes."""
        return self.phase & 1

    def complete_if_done(self) -> None:
        if self.pending or self.tx:
            return
        self.phase += 1
        self.pending = self.count
        self.announced = self.arrived = 0
        np.maximum(self.visible, self.released, out=self.visible)

    def describe(self) -> str:
        flight = sum(transfer.nbytes for transfer in self.transfers)
        text = (
            f"phase {self.phase} is open, {self.pending} of {self.count} arrivals pending, "
            f"{self.tx} transaction bytes expected, {flight} in flight"
        )
        if self.tx == 0 or flight:
            return text
        wrong = "large, or copies are missing" if self.tx > 0 else "small"
        return (
            f"{text}. expect_tx announced {self.announced} bytes and copies brought "
            f"{self.arrived}: it is {abs(self.tx)} bytes too {wrong}"
        )


class _Arriving(NamedTuple):
    """The warps that arrive, and their lanes by warp and mbarrier, each with the first of them."""

    warps: Ints
    lanes: list[tuple[Ints, Thread]]


class MBarriers:
    """The mbarriers of all CTAs, by CTA and shared address."""

    def __init__(self, launch: Launch, shared: SharedMemory) -> None:
        self._launch = launch
        self._shared = shared
        self._barriers: dict[tuple[int, int], Barrier] = {}
        self._slots: dict[int, int] = {}
        # Lanes that arrive at one address, by those that may and those that do.
        self._at_one: dict[tuple[Selection, bytes | None], _Arriving] = {}
        self._unsettled = False  # some warp may not have seen some mbarrier.init

    def init(self, sel: Selection, addr: Array, count: Array, mask: Mask, pc: int) -> None:
        """mbarrier.init: a fresh object, phase 0 in progress."""
        launch = self._launch
        places = self._shared.resolve(Access(sel, addr, OBJECT_BYTES, mask, pc, "mbarrier.init"))
        addr = self._shared.named(sel, addr)
        for thread in executing(sel, mask, pc):
            self._shared.hold_object(int(places.where[thread.lane]), held=True)
            key = thread.cta, int(addr[thread.lane])
            expected = int(count[thread.lane])
            if not 1 <= expected <= MAX_COUNT:
                detail = f"mbarrier.init with count {expected}, not in 1..{MAX_COUNT}"
                launch.findings.report_thread("mbarrier-overflow", detail, thread, addr)
            before = self._barriers.get(key)
            if before is not None:
                detail = "mbarrier.init of a live mbarrier; mbarrier.inval comes first"
                launch.findings.report_thread(
                    "mbarrier-reinitialised", detail, thread, addr, before.initialised_by[2]
                )
            epoch = int(launch.clocks.seen[thread.warp_id, thread.warp])
            nothing = np.zeros_like(launch.clocks.views[:, 0])
            self._barriers[key] = Barrier(
                address=key[1],
                slot=self._slot(key[1]),
                count=expected,
                pending=expected,
                initialised_by=(thread.warp, epoch, pc),
                fenced=False,
                visible=nothing,
                released=nothing.copy(),
                issued=0 if before is None else before.issued,
            )
            self._unsettled = True

    def fence_inits(self, sel: Selection, mask: Mask) -> None:
        """fence.mbarrier_init: copy engines may use what these warps have initialised."""
        if mask is not None and not mask.any():
            return
        warps = set(self._launch.lanes.part(sel, mask).warps.tolist())
        for (cta, _), barrier in self._barriers.items():
            if barrier.initialised_by[0] * self._launch.num_ctas + cta in warps:
                barrier.fenced = True

    def check_fenced(self, thread: Thread, barrier: Barrier) -> None:
        """Whether an mbarrier that a thread gives to a copy engine was initialised before a fence
        that the engine heeds."""
        if barrier.fenced or not self._launch.checks:
            return
        agent, epoch, init_pc = barrier.initialised_by
        clocks = self._launch.clocks
        if clocks.seen_by_proxy[clocks.row(thread.warp_id, thread.alone), agent] < epoch:
            detail = "a bulk copy completes at an mbarrier, with no fence.mbarrier_init or"
            detail += " fence.proxy.async behind its mbarrier.init"
            address = np.full(thread.sel.count, barrier.address)
            self._launch.findings.report_thread(
                "missing-proxy-fence", detail, thread, address, init_pc
            )
        barrier.fenced = True

    def invalidate(self, sel: Selection, addr: Array, mask: Mask, pc: int) -> None:
        """mbarrier.inval: the object is plain memory again."""
        what = "mbarrier.inval"
        places = self._shared.resolve(Access(sel, addr, OBJECT_BYTES, mask, pc, what))
        addr = self._shared.named(sel, addr)
        for thread in executing(sel, mask, pc):
            if self.find(thread, addr) is not None:
                del self._barriers[thread.cta, int(addr[thread.lane])]
                self._shared.hold_object(int(places.where[thread.lane]), held=False)

    def arrive(
        self,
        sel: Selection,
        addr: Array,
        tx: Array | None,
        count: Array | None,
        mask: Mask,
        pc: int,
    ) -> NDArray[np.uint64]:
        """mbarrier.arrive, with transaction bytes to expect if `tx` is given.

        Returns the state of each lane: the parity of the phase it arrived at.
        """
        addr = self._shared.named(sel, addr)
        launch = self._launch
        state = np.zeros(sel.count, np.uint64)
        warps, arriving = self._arriving(sel, addr, mask)
        for lanes, thread in arriving:
            thread = thread._replace(pc=pc)
            barrier = self.find(thread, addr)
            if barrier is None:
                continue
            state[lanes] = barrier.parity
            launch.clocks.let_see(thread.warp_id, thread.alone, barrier.released)
            if tx is not None:
                self._expect(barrier, int(tx[lanes].astype(np.int64).sum()), thread, addr)
            arrivals = len(lanes) if count is None else int(count[lanes].astype(np.int64).sum())
            self._take_arrivals(barrier, arrivals, thread, addr)
        if len(warps):
            launch.clocks.tick_warps(warps)
        return state

    def _arriving(self, sel: Selection, addr: Array, mask: Mask) -> _Arriving:
        """The lanes that arrive, by warp and mbarrier."""
        key = sel, None if mask is None else mask.tobytes()
        known = self._at_one.get(key) if alike(addr) else None
        if known is None:
            alone = alone_among(sel, mask)
            groups = by_warp_and_address(sel, addr, mask)
            firsts = [int(lanes[0]) for lanes in groups]
            threads = [Thread(sel, lane, 0, bool(alone[lane])) for lane in firsts]
            warps = np.unique(sel.warp_id[firsts])
            known = _Arriving(warps, list(zip(groups, threads, strict=True)))
            if alike(addr):
                if len(self._at_one) == MOST_KNOWN:
                    self._at_one.clear()
                self._at_one[key] = known
        return known

    def expect(self, sel: Selection, addr: Array, tx: Array, mask: Mask, pc: int) -> None:
        """mbarrier.expect_tx: more transaction bytes in the phase in progress."""
        addr = self._shared.named(sel, addr)
        for thread in executing(sel, mask, pc):
            barrier = self.find(thread, addr)
            if barrier is not None:
                self._expect(barrier, int(tx[thread.lane]), thread, addr)

    def ready(self, sel: Selection, addr: Array, parity: Array, pc: int) -> NDArray[np.bool_]:
        """Whether the phase of each lane's parity is complete.

        Transfers land here and not before: when somebody waits for the phase and only their bytes
        are missing.
        """
        wait = self.wait(sel, addr, parity)
        return np.array(self.complete(wait, pc), bool)[wait.which]

    def wait(self, sel: Selection, addr: Array, parity: Array) -> Wait:
        """What lanes wait for."""
        return Wait.of(sel, self._shared.named(sel, addr), parity)

    def complete(self, wait: Wait, pc: int) -> list[bool]:
        """Whether each phase that lanes wait for is complete."""
        if self._unsettled:
            self._check_waits(wait.sel, wait.address, pc)
        complete = []
        for number, (cta, address, parity) in enumerate(wait.phases):
            barrier = self._barriers.get((cta, address))
            if barrier is None:
                lane = int((wait.which == number).argmax())
                self.find(Thread(wait.sel, lane, pc), wait.address)
            elif barrier.parity == parity:
                self._land(barrier)
            complete.append(barrier is not None and barrier.parity != parity)
        return complete

    def acquire(self, sel: Selection, addr: Array) -> None:
        """After a wait that passed: what the completed phase made visible."""
        addr = self._shared.named(sel, addr)
        acquire = self._launch.clocks.acquire_all
        if sel.whole_warps and alike(addr):
            address = int(addr[0])
            for cta, warps in warps_by_cta(sel):
                barrier = self._barriers.get((cta, address))
                if barrier is not None:
                    acquire(warps, barrier.visible, alone=False, whole_warp=True)
            return
        for lanes in by_warp_and_address(sel, addr, None):
            lane = int(lanes[0])
            barrier = self._barriers.get((int(sel.cta[lane]), int(addr[lane])))
            if barrier is not None:
                alone, whole = bool(sel.alone[lane]), sel.whole_warps
                warps = sel.warp_id[lane : lane + 1]
                acquire(warps, barrier.visible, alone=alone, whole_warp=whole)

    def find(self, thread: Thread, addr: Array) -> Barrier | None:
        """The mbarrier a thread names; None, and a finding, if there is none it may use."""
        findings, clocks = self._launch.findings, self._launch.clocks
        addr = self._shared.named(thread.sel, addr)
        barrier = self._barriers.get((thread.cta, int(addr[thread.lane])))
        if barrier is None:
            detail = "there is no initialised mbarrier at this address"
            findings.report_thread("mbarrier-uninitialised", detail, thread, addr)
        elif self._unsettled:
            agent, epoch, init_pc = barrier.initialised_by
            if epoch > clocks.seen[thread.warp_id, agent]:
                detail = "the mbarrier is used without a barrier after its mbarrier.init"
                findings.report_thread("race", detail, thread, addr, init_pc)
        return barrier

    def start_transfer(
        self, barrier: Barrier, nbytes: int, lane: int, pc: int, land: Callable[[], None]
    ) -> tuple[int, int]:
        """Bind an asynchronous write to a barrier; returns its agent and epoch."""
        barrier.issued += 1
        barrier.transfers.append(Transfer(nbytes, barrier.issued, lane, pc, land))
        return self._launch.clocks.barrier_agent(barrier.slot), barrier.issued

    def describe_waiters(self, sel: Selection, addr: Array, parity: Array) -> list[str]:
        """One sentence for each barrier these lanes wait for and each parity they wait with."""
        addr = self._shared.named(sel, addr)
        key = addr.astype(np.int64) << 1 | parity.astype(np.int64) & 1
        sentences = []
        for packed in np.unique(key).tolist():
            address, waited = packed >> 1, packed & 1
            waiting = np.flatnonzero(key == packed)
            first = int(waiting[0])
            cta, warp = int(sel.cta[first]), int(sel.warp[first])
            clusters = self._launch.clusters
            barrier = self._barriers.get((cta, address))
            what = "it was never initialised" if barrier is None else barrier.describe()
            sentences.append(
                f"{len(np.unique(sel.warp_id[waiting]))} warps, the first being warp "
                f"{clusters.warp(warp)} of CTA {clusters.cta(cta, warp)}, wait for parity {waited} "
                f"of the mbarrier at shared address {address % WINDOW:#x}: {what}"
            )
        return sentences

    def report_unfinished(self) -> None:
        """At the end of the kernel, find the transfers nobody waited for."""
        for barrier in self._barriers.values():
            for transfer in barrier.transfers:
                sel = self._launch.lanes.select(np.array([transfer.lane]))
                detail = "the kernel ends while a bulk load nobody waited for is on its way"
                self._launch.findings.report_thread(
                    "bulk-load-unwaited", detail, Thread(sel, 0, transfer.pc)
                )

    def _check_waits(self, sel: Selection, addr: Array, pc: int) -> None:
        """Whether waiting warps have seen their mbarriers initialised; skipped once all have."""
        for lanes in by_warp_and_address(sel, addr, None):
            self.find(Thread(sel, int(lanes[0]), pc), addr)
        seen, num_ctas = self._launch.clocks.seen, self._launch.num_ctas
        self._unsettled = any(
            (seen[cta::num_ctas, barrier.initialised_by[0]] < barrier.initialised_by[1]).any()
            for (cta, _), barrier in self._barriers.items()
        )

    def _slot(self, address: int) -> int:
        slot = self._slots.setdefault(address, len(self._slots))
        if slot >= MAX_BARRIERS * self._launch.clusters.size:
            raise EmulatorError(f"a kernel may have up to {MAX_BARRIERS} mbarriers a CTA")
        return slot

    def _expect(self, barrier: Barrier, tx: int, thread: Thread, addr: Array) -> None:
        barrier.tx += tx
        barrier.announced += tx
        if abs(barrier.tx) > MAX_COUNT:
            detail = f"{barrier.tx} transaction bytes expected; the limit is {MAX_COUNT}"
            self._launch.findings.report_thread("mbarrier-overflow", detail, thread, addr)

    def _take_arrivals(self, barrier: Barrier, arrivals: int, thread: Thread, addr: Array) -> None:
        """Count arrivals down; those beyond a phase that cannot complete yet are lost."""
        while arrivals:
            taken = min(arrivals, barrier.pending)
            if taken == 0:
                detail = (
                    f"{arrivals} arrivals more than the count {barrier.count}, while "
                    f"{barrier.tx} transaction bytes of the phase are outstanding"
                )
                self._launch.findings.report_thread("mbarrier-overflow", detail, thread, addr)
                return
            arrivals -= taken
            barrier.pending -= taken
            barrier.complete_if_done()

    def _land(self, barrier: Barrier) -> None:
        waited = barrier.phase
        agent = self._launch.clocks.barrier_agent(barrier.slot)
        while barrier.transfers and barrier.pending == 0 and barrier.phase == waited:
            transfer = barrier.transfers.popleft()
            transfer.land()
            barrier.tx -= transfer.nbytes
            barrier.arrived += transfer.nbytes
            barrier.released[:, agent] = transfer.epoch
            if barrier.tx < 0:
                self._report_excess(barrier, transfer)
            barrier.complete_if_done()

    def _report_excess(self, barrier: Barrier, transfer: Transfer) -> None:
        thread = Thread(self._launch.lanes.select(np.array([transfer.lane])), 0, transfer.pc)
        detail = (
            f"phase {barrier.phase} of the mbarrier completes {-barrier.tx} transaction bytes "
            "more than it expects"
        )
        address = np.array([barrier.address])
        self._launch.findings.report_thread("mbarrier-transaction", detail, thread, address)
