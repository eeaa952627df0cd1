# SPDX-License-Identifier: Apache-2.0
"""The race detector of shared memory: is every access ordered with those it conflicts with?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, alone_among
from ptx_emulator.machine.checks import explain
from ptx_emulator.machine.checks.accessors import Accessors, Epochs, Read
from ptx_emulator.machine.checks.direct_shared import DirectShared
from ptx_emulator.machine.checks.patterns import Pattern
from ptx_emulator.machine.checks.readers import Readers
from ptx_emulator.machine.checks.shadow_state import (
    COLLECTIVE,
    LANE_BITS,
    LANE_MASK,
    Bools,
    Ints,
    ShadowState,
    Tags,
    Writers,
)
from ptx_emulator.machine.checks.shared_flags import SharedFlags
from ptx_emulator.machine.checks.values import Values
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.launch.clocks import WARPS_PER_GROUP
from ptx_emulator.machine.launch.findings import Findings
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.storage import Storage
from ptx_emulator.program.exchanged import Exchanged

UNSYNCED = ", with no __syncwarp in between"
MOST_PENDING = 512
MOST_KNOWN = 512  # selections


class Shadow:
    """Checks accesses to shared memory and reports those that are not ordered."""

    def __init__(self, launch: Launch, storage: Storage) -> None:
        clocks = launch.clocks
        self._clocks = clocks
        self._findings: Findings = launch.findings
        self._checks = launch.checks
        self._stride = launch.shared_stride
        self._flags = SharedFlags(launch)
        self._exchanged = Exchanged(launch.program.kernel)
        self._warps_per_cta = launch.warps_per_cta
        self._lane_agents = 2 * self._warps_per_cta  # warps and single lanes have the first numbers
        self._readers = Readers.of(clocks)
        readers = len(self._readers.first)
        self._state = ShadowState(launch.shared_bytes, self._lane_agents, readers)
        self._joins = 0  # barriers of all warps until the last look
        self._unsettled = False  # whether somebody wrote since then
        self._engines_wrote = False
        self._pending: list[Read] = []  # not yet entered into the tables
        self._latest_read: Epochs = np.zeros(readers, np.int32)
        self._latest_lane_read: Epochs = np.zeros(readers, np.int32)
        self._known: dict[Selection, Accessors] = {}
        self._direct: DirectShared | None = None
        if launch.native is not None and launch.checks:
            latest = self._latest_read, self._latest_lane_read
            given = launch, launch.native, storage, self._state, self._readers, latest
            self._direct = DirectShared(*given)

    def check_read(
        self, access: Access, collective: bool = False, pattern: Pattern | None = None
    ) -> None:
        """A read at flat offsets; a collective one belongs to the whole warp."""
        if not self._checks:
            return
        who, offsets = self._accessors(access)
        if offsets.size == 0:
            return
        self._forget_what_all_know()
        if self._unsettled or pattern is None or not pattern.written:
            reports = self._findings.reports
            self._check_writers(access, who, offsets, collective)
            if pattern is not None:
                pattern.written = self._findings.reports == reports
        synced = self._clocks.seen_by_lanes.reshape(-1).take(who.clock_row + who.agent)
        if self._flags.have_order:  # lanes that act alone may have met by a flag
            synced = np.where(who.agent < self._warps_per_cta, synced, who.epochs)
        fields: Ints = np.stack((who.clock_row, who.agent, who.lane, who.epochs, synced))
        pcs = np.array([access.pc])
        self._put_off(Read(pcs, offsets[None], access.nbytes, fields, collective))

    def _put_off(self, read: Read) -> None:
        """Enter a read into the tables when somebody needs them."""
        self._pending.append(read)
        if len(self._pending) == MOST_PENDING:
            self._record_reads()

    def _forget_what_all_know(self) -> None:
        """Behind a barrier of all warps no access before it matters, but those of engines."""
        if self._joins != self._clocks.joins:
            self._joins = self._clocks.joins
            self._unsettled = self._engines_wrote
            self._pending.clear()

    def _record_reads(self) -> None:
        """Enter the reads that were put off into the tables."""
        self._forget_what_all_know()
        for read in self._pending:
            if self._direct is not None:
                self._direct.record(read)
                continue
            _, agent, _, epoch, _ = read.who
            np.maximum.at(self._latest_read, agent, epoch.astype(np.int32))
            if not read.collective:
                np.maximum.at(self._latest_lane_read, agent, epoch.astype(np.int32))
            self._state.read(read)
        self._pending.clear()

    def _check_writers(
        self, access: Access, who: Accessors, offsets: Ints, collective: bool
    ) -> None:
        """Look for writes that the readers do not know, and for bytes that nobody wrote."""
        state = self._state
        chunks = offsets >> 4
        epoch = state.epoch.take(chunks)
        place = state.agent.take(chunks) + who.clock_row
        known = self._clocks.seen_by_lanes.reshape(-1).take(place)
        # As unsigned numbers, never written (0) and split (-1) are later than any known epoch.
        if ((epoch - 1).view(np.uint32) >= known.view(np.uint32)).any():
            self._inspect_read(access, who, offsets, collective)

    def check_write(
        self,
        access: Access,
        collective: bool = False,
        agent: Ints | None = None,
        epoch: NDArray[Any] | None = None,
        values: Values | None = None,
    ) -> None:
        """A write at flat offsets by the lanes, of `values` if they are known, or for them by
        `agent` in its `epoch`."""
        if not self._checks:
            return
        who, offsets = self._accessors(access)
        if offsets.size == 0:
            return
        self._record_reads()
        self._unsettled = True
        self._engines_wrote |= agent is not None
        chosen = slice(None) if access.mask is None else access.mask
        agents = who.agent if agent is None else agent[chosen]
        epochs: NDArray[Any] = who.epochs if epoch is None else epoch[chosen]
        state = self._state
        chunks = offsets >> 4
        before = state.epoch.take(chunks)
        known = self._clocks.seen.reshape(-1).take(state.agent.take(chunks) + who.clock_row)
        if (before > known).any() or (before < 0).any():
            self._inspect_overwrite(access, who, offsets, values)
        self._check_readers(access, who, offsets)
        tags = (COLLECTIVE if collective else who.lane) + (access.pc << LANE_BITS)
        clash = state.write(offsets, access.nbytes, agents, epochs, tags)
        if clash.any():
            self._report_clash(access, clash, values)

    def _report_clash(self, access: Access, clash: Bools, values: Values | None) -> None:
        """Stores of one instruction that meet, of several warps; they may store the same."""
        if values is not None:
            clash = clash & ~values.agreed(access, access.lanes)
        detail = "two warps write the same bytes with one instruction"
        self._report("race", detail, access, clash, access.pc)

    def check_atomic(self, access: Access) -> None:
        """An atomic at flat offsets. Atomics do not race with each other."""
        who, offsets = self._accessors(access)
        if not self._checks or offsets.size == 0:
            return
        self._record_reads()
        self._unsettled = True
        writers = self._state.last_writers(offsets, access.nbytes)
        unset = _lanes(writers.epoch == 0)
        if unset.any():
            detail = "atomic on shared memory that nothing was written to"
            self._report("uninitialised-shared", detail, access, unset)
        place = writers.agent + who.clock_row[:, None]
        late = writers.epoch > self._clocks.seen.reshape(-1).take(place)
        late = self._without_flags(late, access, who, writers)
        if late.any():
            detail, other = self._explain("atomic on bytes written by", writers, late, who)
            self._report("race", detail, access, _lanes(late), other)
        self._check_readers(access, who, offsets)
        tags = who.lane + (access.pc << LANE_BITS)
        self._state.write(offsets, access.nbytes, who.agent, who.epochs, tags)

    def _agents_of_reader(self, reader: int) -> Ints:
        """The agents that read as one: the tensor cores of the four warps of a warpgroup do."""
        first, agents = self._readers.first[reader], self._readers.agents[reader]
        return np.arange(first, first + agents)

    def _seen_of_readers(self, seen: Epochs) -> Epochs:
        """By reader, what a clock has seen of it: of a warpgroup what it has of all four warps."""
        readers = self._readers
        known: Epochs = seen[readers.first]
        first = readers.first[readers.wgmma]
        if len(first):
            of_warps = seen[first[0] : first[-1] + WARPS_PER_GROUP].reshape(-1, WARPS_PER_GROUP)
            known[readers.wgmma] = of_warps.min(axis=1)
        return known

    def _accessors(self, access: Access) -> tuple[Accessors, Ints]:
        """The lanes that make a resolved access, and their offsets."""
        sel, mask = access.sel, access.mask
        if mask is None:
            return self._lanes_of(sel), access.where
        offsets = access.where[mask]
        if len(offsets) > sel.num_warps:
            return self._lanes_of(sel).part(mask), offsets
        return self._lanes_of(sel, alone_among(sel, mask)).part(mask), offsets

    def _lanes_of(self, sel: Selection, alone: Bools | None = None) -> Accessors:
        """All lanes of a selection; those act alone that do so in it, or of which `alone` holds."""
        clocks = self._clocks
        known = self._known.get(sel) if alone is None else None
        if known is not None and known.version == clocks.version:
            return known
        if known is None:
            known = self._placed(sel) if alone is None else self._place(sel, alone)
        epochs = clocks.epochs(sel.warp_id)
        rows = known.clock_row // clocks.num_agents
        if sel.whole_warps and alone is None:
            rows = sel.warps
        fresh = replace(
            known,
            version=clocks.version,
            epochs=epochs,
            oldest_seen=self._seen_of_readers(clocks.seen[rows].min(axis=0)),
        )
        if alone is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            self._known[sel] = fresh
        return fresh

    def _placed(self, sel: Selection) -> Accessors:
        placed = sel.memo.get("accessors")
        if not isinstance(placed, Accessors):
            placed = sel.memo["accessors"] = self._place(sel, sel.alone)
        return placed

    def _place(self, sel: Selection, alone: Bools) -> Accessors:
        """The lanes of a selection with what does not change."""
        clocks = self._clocks
        agent = np.where(alone, clocks.lane_agent(sel.warp), sel.warp)
        row = np.where(alone, sel.warp_id + clocks.num_warps, sel.warp_id)
        nothing: Epochs = np.zeros(0, np.int32)
        return Accessors(
            clock_row=row * clocks.num_agents,
            chunk_row=agent * self._state.num_chunks,
            agent=agent,
            warp=sel.warp,
            lane=sel.lane,
            version=-1,
            epochs=nothing,
            oldest_seen=nothing,
        )

    def _inspect_read(
        self, access: Access, who: Accessors, offsets: Ints, collective: bool
    ) -> None:
        clocks = self._clocks
        writers = self._state.last_writers(offsets, access.nbytes)
        unset = _lanes(writers.epoch == 0)
        if unset.any():
            detail = "read of shared memory that nothing was written to"
            self._report("uninitialised-shared", detail, access, unset)
        place = writers.agent + who.clock_row[:, None]
        unknown = writers.epoch > clocks.seen.reshape(-1).take(place)
        late = self._without_flags(unknown, access, who, writers)
        if late.any():
            detail, other = self._explain("read of bytes written by", writers, late, who)
            self._report("race", detail, access, _lanes(late), other)
        warp = who.warp[:, None]
        own = (writers.agent == warp) | (writers.agent == clocks.copy_agent(warp))
        own |= writers.agent == clocks.lane_agent(warp)
        own &= ~unknown & (writers.epoch > clocks.seen_by_lanes.reshape(-1).take(place))
        if not collective:
            own &= (writers.tag & LANE_MASK) != who.lane[:, None]
        own = self._without_flags(own, access, who, writers)
        if own.any():
            detail = f"read of bytes another lane of the warp wrote{UNSYNCED}"
            other = pc_of(writers.tag[own])
            self._report("intra-warp-race", detail, access, _lanes(own), other)

    def _without_flags(
        self, late: Bools, access: Access, who: Accessors, writers: Writers
    ) -> Bools:
        """Those of the accesses behind unknown writes that need an order, and get none by flags."""
        if not late.any():
            return late
        late = late & ~self._flags.may_meet(access.pc, writers.tag >> LANE_BITS)
        return late & ~self._flags.order(late, who.clock_row, writers.agent, writers.epoch)

    def _inspect_overwrite(
        self, access: Access, who: Accessors, offsets: Ints, values: Values | None
    ) -> None:
        writers = self._state.last_writers(offsets, access.nbytes)
        place = writers.agent + who.clock_row[:, None]
        late = writers.epoch > self._clocks.seen.reshape(-1).take(place)
        late = self._without_flags(late, access, who, writers)
        if values is not None and late.any():
            stores = writers.agent < self._lane_agents
            stores &= ~np.isin(writers.tag >> LANE_BITS, self._flags.atomics)
            late &= ~(stores & values.unchanged(access, access.lanes)[:, None])
        if late.any():
            detail, other = self._explain("write over bytes written by", writers, late, who)
            self._report("race", detail, access, _lanes(late), other)

    def _check_readers(self, access: Access, who: Accessors, offsets: Ints) -> None:
        """Look for reads that the writing warps do not know to be over."""
        clocks = self._clocks
        if (self._latest_read > who.oldest_seen).any():
            seen = clocks.seen.reshape(-1)
            for reader in np.flatnonzero(self._latest_read > who.oldest_seen).tolist():
                agents = self._agents_of_reader(reader)
                known = seen.take(who.clock_row[:, None] + agents).min(axis=1)
                late, tags, epochs = self._state.late_reads(reader, offsets, access.nbytes, known)
                reads = int(self._readers.first[reader]), tags, epochs
                late = self._unflagged_reads(late, access, who, reads)
                if late.any():
                    agent = np.full((late.size, 1), self._readers.first[reader])
                    readers = Writers(epochs[:, None], agent, tags[:, None])
                    what = "write over bytes read by"
                    detail, other = self._explain(what, readers, late[:, None], who)
                    self._report("race", detail, access, late, other)
        for agent in (who.warp, clocks.lane_agent(who.warp)):
            own = clocks.seen_by_lanes.reshape(-1).take(who.clock_row + agent)
            if (self._latest_lane_read.take(agent) > own).any():
                late, tags, epochs = self._state.late_reads(agent, offsets, access.nbytes, own)
                lane = tags & LANE_MASK
                late &= (lane != COLLECTIVE) & (lane != who.lane)
                late = self._unflagged_reads(late, access, who, (agent, tags, epochs))
                if late.any():
                    late &= ~self._exchanged.feeds(tags >> LANE_BITS, access.pc)
                if late.any():
                    detail = f"write over bytes another lane of the warp read{UNSYNCED}"
                    self._report("intra-warp-race", detail, access, late, pc_of(tags[late]))

    def _unflagged_reads(
        self, late: Bools, access: Access, who: Accessors, reads: tuple[Ints | int, Tags, Epochs]
    ) -> Bools:
        """Like `_without_flags`, behind unknown reads: agents, tags and epochs, one a lane."""
        agent, tags, epochs = (np.broadcast_to(field, late.shape)[:, None] for field in reads)
        return self._without_flags(late[:, None], access, who, Writers(epochs, agent, tags))[:, 0]

    def _explain(
        self, what: str, others: Writers, bad: Bools, warps: Accessors | int
    ) -> tuple[str, int]:
        """What happened to bytes that others accessed, [lanes, parts], by warps or one warp."""
        lane, part = (int(index[0]) for index in np.nonzero(bad))
        warp = warps if isinstance(warps, int) else int(warps.warp[lane])
        agent, tag = int(others.agent[lane, part]), int(others.tag[lane, part])
        clocks = self._clocks
        detail = f"{what} {explain.who(clocks, agent, tag)}{explain.missing(clocks, agent, warp)}"
        return detail, tag >> LANE_BITS

    def _report(
        self, kind: str, detail: str, access: Access, bad: Bools, other_pc: int | None = None
    ) -> None:
        """Note a mistake of those lanes that make the access for which `bad` holds."""
        sel = access.sel
        bad_lanes = np.zeros(sel.count, bool)
        bad_lanes[access.lanes[bad]] = True
        address = access.where - sel.shared_base
        self._findings.report(kind, detail, access.pc, sel, bad_lanes, address, other_pc)


def pc_of(tags: Tags) -> int:
    return int(tags.reshape(-1)[0]) >> LANE_BITS


def _lanes(parts: Bools) -> Bools:
    """Lanes with any part of their access, [lanes, parts], marked."""
    lanes: Bools = np.logical_or.reduce(parts, axis=1)
    return lanes
