# SPDX-License-Identifier: Apache-2.0
"""The race detector of global memory.

Accesses of two threads to the same bytes, of which one writes, need an order: program order,
__syncwarp inside a warp, a barrier inside a CTA, or a flag behind fences between any two. Strong
accesses (atomics, volatile, relaxed, acquire, release) need none among each other.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from ptx_emulator.machine.access import Access, Bools, Ints, alone_among
from ptx_emulator.machine.checks.flag_order import Actor, FlagOrder, Pair
from ptx_emulator.machine.checks.lone_stores import store_by_one
from ptx_emulator.machine.checks.shadow_state import LANE_BITS, LANE_MASK
from ptx_emulator.machine.checks.values import Values
from ptx_emulator.machine.lanes import GLOBAL_BASE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.allocation import Allocation, Touches
from ptx_emulator.program.ordering import WEAK, Ordering

MOST_KNOWN = 512  # selections
CONFLICT = "cta-write-conflict"
READ_ONLY = "read-only-load"
PLAIN, STRONG, ATOMIC, ADDITION, CTA_ATOMIC = range(5)  # how an access was made
KIND_BITS = 3
KINDS = (1 << KIND_BITS) - 1
EVERY = {PLAIN, STRONG, ATOMIC, ADDITION, CTA_ATOMIC}
MET = {  # the accesses that one has to be ordered with, if they are of the same CTA, or of another
    PLAIN: (EVERY, EVERY),
    STRONG: ({PLAIN}, {PLAIN, CTA_ATOMIC}),
    CTA_ATOMIC: ({PLAIN}, EVERY),
}
MET |= {ATOMIC: MET[STRONG], ADDITION: MET[STRONG]}
MEETS = {
    kind: tuple(np.isin(np.arange(KINDS + 1), list(kinds)) for kinds in met)
    for kind, met in MET.items()
}
DID = {ATOMIC: "an atomic", ADDITION: "an addition", CTA_ATOMIC: "an atomic of CTA scope"}


@dataclass(frozen=True)
class _Who:
    """The lanes that make an access: rows of the clocks, and what to record of each."""

    row: Ints
    cta: Ints
    warp: Ints
    lane: Ints
    touches: Touches

    @property
    def kind(self) -> int:
        return int(self.touches.tag[0]) >> LANE_BITS & KINDS


class GlobalShadow:
    """Checks accesses to global memory and reports those that are not ordered."""

    def __init__(self, launch: Launch, first_writer: int) -> None:
        self._launch = launch
        self._clocks = launch.clocks
        self._native = launch.native
        self._first_writer = first_writer
        self.agents = 2 * launch.warps_per_cta
        self.num_writers = launch.num_ctas * self.agents
        self._flags = FlagOrder(launch.clocks)
        self._orderings = launch.program.orderings
        self._bulk_pcs = launch.program.bulk_copies
        self._known: dict[Selection, tuple[int, _Who]] = {}  # with the version of the clocks

    def ordering(self, pc: int) -> Ordering:
        return self._orderings.get(pc, WEAK)

    def read(self, allocation: Allocation, lanes: Ints, access: Access, tracked: bool) -> None:
        """Check a resolved read, and record it if it is `tracked`."""
        ordering = self.ordering(access.pc)
        where = access.where[lanes]
        if allocation.newest > self._first_writer:
            who = self._who(access, lanes, STRONG if ordering.strong else PLAIN)
            everyone = len(lanes) == access.sel.count
            if ordering.read_only:
                writes = allocation.writes(where, access.nbytes)
                self._check_read_only(allocation, lanes, access, writes[0])
            elif not (everyone and self._knows_all(allocation, access, who, reads=False)):
                writes = allocation.writes(where, access.nbytes)
                self._check(allocation, lanes, access, who, writes, "wrote", set())
        if tracked:
            who = self._who(access, lanes, STRONG if ordering.strong else PLAIN)
            allocation.read(where, access.nbytes, who.touches)

    def write(
        self, allocation: Allocation, lanes: Ints, access: Access, values: Values | None
    ) -> None:
        """Check and record a resolved store."""
        strong = self.ordering(access.pc).strong
        if access.sel.by_one and access.mask is None and not strong and self._native is not None:
            how = (PLAIN << LANE_BITS) + (access.pc << LANE_BITS + KIND_BITS)
            launch = self._first_writer, self.agents
            if store_by_one(self._native, self._clocks, allocation, access, launch, how):
                return
        met = self._store(allocation, lanes, access, STRONG if strong else PLAIN, values)
        if not strong and met.any():
            self._report_at_once(allocation, lanes, access, met, values)

    def meet_at_once(
        self, allocation: Allocation, lanes: Ints, access: Access, values: Values
    ) -> None:
        """Look at a store that is recorded, and of which lanes met those of other agents."""
        mine = self._who(access, lanes, PLAIN).touches
        met = allocation.lost(access.where[lanes], access.nbytes, mine)
        self._report_at_once(allocation, lanes, access, met, values)

    def _report_at_once(
        self,
        allocation: Allocation,
        lanes: Ints,
        access: Access,
        met: Bools,
        values: Values | None,
    ) -> None:
        """Stores of one instruction that meet, of several warps or CTAs; they may store the
        same."""
        where = access.where[lanes]
        meeting = lanes[np.isin(where, where[met])]
        if values is not None and values.is_mark(meeting):
            return
        rest = self._report_ctas_at_once(allocation, meeting, access)
        if values is not None:
            rest = rest[~values.agreed(access, rest)]
        detail = f"{access.what} of bytes of {_name(allocation)} that another warp stores"
        self._note("race", f"{detail} at the same time", access, rest, None)

    def _store(
        self,
        allocation: Allocation,
        lanes: Ints,
        access: Access,
        kind: int,
        values: Values | None,
    ) -> Bools:
        """Check and record a store; returns the lanes that meet another agent at once."""
        who = self._who(access, lanes, kind)
        if self._native is None or len(lanes) < access.sel.count:
            self._check_before(allocation, lanes, access, who, values)
            where = access.where[lanes]
            return allocation.write(where, access.nbytes, who.touches, replaces=True)
        if not self._knows_all(allocation, access, who, reads=True):
            self._check_before(allocation, lanes, access, who, values)
        return allocation.store(self._native, access.where, access.nbytes, who.touches)

    def _knows_all(self, allocation: Allocation, access: Access, who: _Who, reads: bool) -> bool:
        """Whether all lanes surely know what was done with the bytes of their access."""
        if self._native is None:
            return False
        clocks = self._clocks
        counts = self._first_writer, self.agents, clocks.warps_per_cta, clocks.num_agents
        lanes = who.row, who.cta, who.warp, who.lane, clocks.seen, clocks.seen_by_lanes
        place = access.where, allocation.start, access.nbytes, allocation.part(access.nbytes)
        records = allocation.write_records if allocation.newest > self._first_writer else ()
        if reads and allocation.newest_reader > self._first_writer:
            records = (*records, *allocation.read_records)
        return all(
            self._native.check_touches(*place, *touches, *counts, *lanes) >= 0
            for touches in records
        )

    def change(self, allocation: Allocation, lanes: Ints, access: Access, kind: int) -> None:
        """Check and record resolved atomics."""
        if self.ordering(access.pc).scope == "cta":
            kind = CTA_ATOMIC
        who = self._who(access, lanes, kind)
        self._check_before(allocation, lanes, access, who, None)
        where = access.where[lanes]
        met = allocation.write(where, access.nbytes, who.touches, replaces=False)
        if kind == CTA_ATOMIC and met.any():
            meeting = lanes[np.isin(where, where[met])]
            self._report_ctas_at_once(allocation, meeting, access)

    def observe(self, access: Access) -> None:
        """Strong loads learn from their places."""
        for actor, place in self._actors(access):
            self._flags.observe(actor, place, self.ordering(access.pc))

    def publish(self, access: Access, adds: bool) -> None:
        """Strong stores, and atomics, tell who reads their places what was done before."""
        for actor, place in self._actors(access):
            self._flags.publish(actor, place, self.ordering(access.pc), adds)

    def meet(self, access: Access) -> None:
        """Atomics that read and change their places at once, one after the other."""
        ordering = self.ordering(access.pc)
        for actor, place in self._actors(access):
            self._flags.observe(actor, place, ordering)
            self._flags.publish(actor, place, ordering, adds=True)

    def _actors(self, access: Access) -> list[tuple[Actor, int]]:
        lanes = access.lanes
        alone = _alone(access)[lanes]
        keys = np.stack((access.where[lanes], access.sel.warp_id[lanes], alone), axis=1)
        found = np.unique(keys, axis=0).tolist()
        return [(Actor(warp, bool(alone)), place) for place, warp, alone in found]

    def _who(self, access: Access, lanes: Ints, kind: int) -> _Who:
        how = (kind << LANE_BITS) + (access.pc << LANE_BITS + KIND_BITS)
        sel = access.sel
        if access.mask is not None or len(lanes) < sel.count:
            alone = _alone(access)[lanes]
            warp_id, warp, cta, lane = (
                field[lanes] for field in (sel.warp_id, sel.warp, sel.cta, sel.lane)
            )
            return self._lanes_at(warp_id, warp, cta, lane, alone, how)
        known = self._known.get(sel)
        if known is None or known[0] != self._clocks.version:
            who = self._lanes_at(sel.warp_id, sel.warp, sel.cta, sel.lane, _alone(access), 0)
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            known = self._known[sel] = self._clocks.version, who
        _, who = known
        return replace(who, touches=who.touches._replace(tag=who.touches.tag + np.int32(how)))

    def _lanes_at(
        self, warp_id: Ints, warp: Ints, cta: Ints, lane: Ints, alone: Bools, how: int
    ) -> _Who:
        clocks = self._clocks
        agent = np.where(alone, clocks.lane_agent(warp), warp)
        number = (self._first_writer + 1 + cta * self.agents + agent).astype(np.int32)
        row = np.where(alone, warp_id + clocks.num_warps, warp_id)
        tag = (lane + how).astype(np.int32)
        return _Who(row, cta, warp, lane, Touches(number, clocks.epochs(warp_id), tag))

    def _check_before(
        self, allocation: Allocation, lanes: Ints, access: Access, who: _Who, values: Values | None
    ) -> None:
        """Look at what others did with the bytes of a write."""
        where = access.where[lanes]
        if allocation.newest > self._first_writer:
            writes = allocation.writes(where, access.nbytes)
            self._check(allocation, lanes, access, who, writes, "wrote", {ATOMIC}, values)
        if allocation.newest_reader > self._first_writer:
            reads = allocation.reads(where, access.nbytes)
            self._check(allocation, lanes, access, who, reads, "read", EVERY)

    def _check(
        self,
        allocation: Allocation,
        lanes: Ints,
        access: Access,
        who: _Who,
        before: Sequence[Touches],
        did: str,
        loose: Set[int],
        values: Values | None = None,
    ) -> None:
        """Report the accesses that come in no order behind those of others. Of the kinds in `loose`
        a flag without fences is enough."""
        clocks = self._clocks
        for touches in before:
            fresh = touches.number > self._first_writer
            if not fresh.any():
                continue
            near_kinds, far_kinds = MEETS[who.kind]
            theirs = np.maximum(touches.number - (self._first_writer + 1), 0).astype(np.int64)
            cta, agent = np.divmod(theirs, self.agents)
            kind = touches.tag >> LANE_BITS & KINDS
            near = cta == who.cta[:, None]
            met = fresh & np.where(near, near_kinds[kind], far_kinds[kind])
            place = who.row[:, None] * clocks.num_agents + agent
            own = near & (agent % clocks.warps_per_cta == who.warp[:, None])
            seen = np.where(own, clocks.seen_by_lanes.take(place), clocks.seen.take(place))
            known = near & (touches.epoch <= seen)
            known |= own & ((touches.tag & LANE_MASK) == who.lane[:, None])
            late = met & ~known
            if late.any():
                late = self._without_flags(
                    late, who, cta, agent, touches, np.isin(kind, list(loose)), access.pc
                )
            if values is not None and late.any():
                stores = (kind == PLAIN) | (kind == STRONG)
                stores &= near | values.is_mark(lanes)
                late &= ~(stores & values.unchanged(access, lanes)[:, None])
            sides = ((CONFLICT, ~near), ("race", near & ~own), ("intra-warp-race", own))
            for finding, side in sides:
                if (late & side).any():
                    self._report(finding, allocation, lanes, access, late & side, touches, did)

    def _without_flags(
        self,
        late: Bools,
        who: _Who,
        cta: Ints,
        agent: Ints,
        touches: Touches,
        loose: Bools,
        pc: int,
    ) -> Bools:
        """Those of the accesses that no flag orders either."""
        lane, part = np.nonzero(late)
        theirs = (field[lane, part] for field in (cta, agent, touches.epoch, loose))
        first = np.isin(touches.tag[lane, part] >> LANE_BITS + KIND_BITS, self._bulk_pcs)
        keys = np.stack((who.row[lane], *theirs, first), axis=1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        covered = [self._covered(pc in self._bulk_pcs, *key) for key in distinct.tolist()]
        rest = late.copy()
        rest[lane, part] = ~np.array(covered)[inverse.reshape(-1)]
        return rest

    def _covered(
        self, second: bool, row: int, cta: int, agent: int, epoch: int, loose: int, first: int
    ) -> bool:
        place, by_engines = (row, cta, agent, epoch), Pair(bool(first), second)
        if self._flags.covers(*place, loose=False, by_engines=by_engines):
            return True
        return bool(loose) and self._flags.covers(*place, loose=True, by_engines=by_engines)

    def _check_read_only(
        self, allocation: Allocation, lanes: Ints, access: Access, writes: Touches
    ) -> None:
        written = writes.number > self._first_writer
        if written.any():
            self._report(READ_ONLY, allocation, lanes, access, written, writes, "wrote")

    def _report_ctas_at_once(self, allocation: Allocation, lanes: Ints, access: Access) -> Ints:
        """Lanes of one instruction that meet, of several CTAs; returns those of one CTA alone."""
        where, cta = access.where[lanes], access.sel.cta[lanes]
        order = np.argsort(where, kind="stable")
        first = order[np.searchsorted(where[order], where)]
        several: Bools = np.isin(where, where[cta != cta[first]])
        detail = f"{access.what} of bytes of {_name(allocation)} that another CTA"
        detail += " changes at the same time"
        self._note(CONFLICT, detail, access, lanes[several], None)
        return lanes[~several]

    def _report(
        self,
        kind: str,
        allocation: Allocation,
        lanes: Ints,
        access: Access,
        bad: Bools,
        touches: Touches,
        did: str,
    ) -> None:
        lane, part = (int(index[0]) for index in np.nonzero(bad))
        number, tag = int(touches.number[lane, part]), int(touches.tag[lane, part])
        cta, agent = divmod(number - self._first_writer - 1, self.agents)
        how = DID.get(tag >> LANE_BITS & KINDS)
        what = f"{did} by {how}" if how else did
        who = f"{self._named(cta, agent % self._launch.warps_per_cta)} lane {tag & LANE_MASK}"
        ending = {
            READ_ONLY: "; the read-only cache may hold what was there before the kernel",
            "intra-warp-race": ", in another lane, with no __syncwarp in between",
            "race": ", with no barrier in between",
            CONFLICT: self._why(bad, lanes, access, touches),
        }[kind]
        detail = f"{access.what} of bytes of {_name(allocation)} that {who} {what}{ending}"
        pc = tag >> LANE_BITS + KIND_BITS
        self._note(kind, detail, access, lanes[bad.any(axis=1)], pc)

    def _named(self, cta: int, warp: int) -> str:
        """A warp, and its CTA in the grid, of a CTA or a cluster that runs as one."""
        clusters = self._launch.clusters
        return f"CTA {clusters.cta(cta, warp)} warp {clusters.warp(warp)}"

    def _why(self, bad: Bools, lanes: Ints, access: Access, touches: Touches) -> str:
        """What is missing between two CTAs: a flag, or the fences around it."""
        lane, part = (int(index[0]) for index in np.nonzero(bad))
        cta, agent = divmod(int(touches.number[lane, part]) - self._first_writer - 1, self.agents)
        who = self._who(access, lanes, PLAIN)
        place = int(who.row[lane]), cta, agent, int(touches.epoch[lane, part])
        if self._flags.covers(*place, loose=False):
            return ", and the flag that orders the two has no fence.proxy.async before or behind it"
        if self._flags.covers(*place, loose=True):
            return ", and the flag that orders the two has no fence before or behind it"
        return ", and nothing orders the two"

    def _note(
        self, kind: str, detail: str, access: Access, lanes: Ints, other_pc: int | None
    ) -> None:
        """Note a mistake of some lanes of an access at offsets in global memory."""
        bad = np.zeros(access.sel.count, bool)
        bad[lanes] = True
        address = access.where + GLOBAL_BASE
        self._launch.findings.report(kind, detail, access.pc, access.sel, bad, address, other_pc)


def _alone(access: Access) -> Bools:
    """Whether lanes act alone, as those do for which an engine makes all the accesses."""
    if access.sel.by_one:
        return np.ones(access.sel.count, bool)
    return alone_among(access.sel, access.mask)


def _name(allocation: Allocation) -> str:
    return allocation.name or "an allocation"
