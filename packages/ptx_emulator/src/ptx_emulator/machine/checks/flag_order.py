# SPDX-License-Identifier: Apache-2.0
"""Order through flags in global memory: what threads did before they wrote a flag that others read.

A thread that changes a flag publishes what it has seen: all of it by a release, what lies before
its last fence otherwise. Who reads the flag may rely on that: at once by an acquire, behind a fence
otherwise. Without any fence, atomics order only each other and the stores behind them (LOOSE).

What copy engines do to global memory is ordered by flags only behind fence.proxy.async: between the
wait for a copy and the flag, and between the flag and a copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.launch.clocks import (
    BEHIND_CTA_FENCE,
    BEHIND_GPU_FENCE,
    BY_GLOBAL_PROXY,
    SEEN,
    Clock,
    Clocks,
)
from ptx_emulator.program.ordering import Ordering

Counts = NDArray[np.int32]  # by publisher, how many of its publications are known
MEMORY = 4  # observations of an agent that are told apart

ANYWHERE, LOOSE = -1, -2  # readers of a flag, instead of a CTA
_NOTHING: Counts = np.zeros(0, np.int32)


class Actor(NamedTuple):
    """Lanes of a warp that act together, or a lane that acts alone."""

    warp_id: int
    alone: bool


class Pair(NamedTuple):
    """Whether a copy engine made each of two accesses, the first and the second one."""

    first: bool
    second: bool


NEITHER = Pair(False, False)


class _Observed:
    """What an agent knew of publications, from some epochs of its own on."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.counts: list[Counts] = []

    def add(self, epoch: int, counts: Counts) -> None:
        if self.counts:
            counts = _merged(self.counts[-1], counts)
        if self.epochs and self.epochs[-1] == epoch:
            self.counts[-1] = counts
            return
        self.epochs.append(epoch)
        self.counts.append(counts)
        if len(self.epochs) > MEMORY:  # the oldest epoch is taken to know a little more
            del self.epochs[1], self.counts[0]

    def until(self, epoch: int) -> Counts:
        place = bisect_right(self.epochs, epoch)
        return self.counts[place - 1] if place else _NOTHING


class FlagOrder:
    """Publications of all threads of a launch, and who knows of them."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._agents = 2 * clocks.warps_per_cta  # that access global memory
        self._flags: dict[tuple[int, int], Counts] = {}  # by place and reader
        self._numbers: dict[tuple[int, int], int] = {}  # of publishers, by row and reader
        self._log: list[list[Clock]] = []  # by publisher: what threads did, and what engines did
        self._of_cta: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
        self._observed: defaultdict[int, dict[tuple[int, int, bool], _Observed]] = defaultdict(dict)

    def publish(self, actor: Actor, place: int, ordering: Ordering, adds: bool) -> None:
        """A thread changes a flag: by an atomic if it `adds`, else by a store, which replaces what
        was published there."""
        clocks = self._clocks
        cta = actor.warp_id % clocks.num_ctas
        known = clocks.known(*actor)
        views = {ANYWHERE: BEHIND_GPU_FENCE, cta: BEHIND_CTA_FENCE}
        if ordering.scope == "cta":
            del views[ANYWHERE]
        for reader, view in views.items():
            if ordering.releases or view < len(known):
                released = known[SEEN if ordering.releases else view]
                self._publish(actor, place, reader, self._with_engines(released, known), adds)
        self._publish(actor, place, LOOSE, self._with_engines(known[SEEN], known), adds)
        clocks.tick_warp(actor.warp_id)

    def observe(self, actor: Actor, place: int, ordering: Ordering) -> None:
        """A thread reads a flag."""
        clocks = self._clocks
        cta, warp = actor.warp_id % clocks.num_ctas, actor.warp_id // clocks.num_ctas
        agent = clocks.lane_agent(warp) if actor.alone else warp
        epoch = int(clocks.seen[actor.warp_id, warp])
        views = {ANYWHERE: BEHIND_GPU_FENCE, cta: BEHIND_CTA_FENCE, LOOSE: SEEN}
        if ordering.scope == "cta":
            del views[ANYWHERE]
        for reader, view in views.items():
            counts = self._flags.get((place, reader))
            if counts is not None:
                behind = SEEN if ordering.acquires else view
                key = agent, behind, reader == LOOSE
                self._observed[cta].setdefault(key, _Observed()).add(epoch, counts)

    def covers(
        self, row: int, cta: int, agent: int, epoch: int, loose: bool, by_engines: Pair = NEITHER
    ) -> bool:
        """Whether the agent of a row knows what an agent of a CTA did in an epoch, or engines know
        that engines did."""
        known = self._knowledge(row, loose, by_engines.second)
        for publisher in self._of_cta[cta, loose]:
            count = known[publisher] if publisher < len(known) else 0
            if count and self._log[publisher][count - 1][int(by_engines.first), agent] >= epoch:
                return True
        return False

    def _with_engines(self, released: Clock, known: Clock) -> Clock:
        """What is released, and how much of it copy engines did before a fence between proxies."""
        if len(known) <= BY_GLOBAL_PROXY:
            return np.stack((released, released))
        return np.stack((released, np.minimum(released, known[BY_GLOBAL_PROXY])))

    def _publish(self, actor: Actor, place: int, reader: int, clock: Clock, adds: bool) -> None:
        clocks, loose = self._clocks, reader == LOOSE
        row = clocks.row(*actor)
        key = row, min(reader, 0)
        if key not in self._numbers:
            self._numbers[key] = len(self._log)
            self._of_cta[actor.warp_id % clocks.num_ctas, loose].append(len(self._log))
            self._log.append([])
        number = self._numbers[key]
        self._log[number].append(clock[:, : self._agents].copy())
        mine = np.zeros(number + 1, np.int32)
        mine[number] = len(self._log[number])
        counts = _merged(mine, self._knowledge(row, loose))
        before = self._flags.get((place, reader)) if adds else None
        self._flags[place, reader] = counts if before is None else _merged(counts, before)

    def _knowledge(self, row: int, loose: bool, for_engine: bool = False) -> Counts:
        """The publications that the agent of a row may rely on, or copies that it starts."""
        clocks = self._clocks
        warp, cta = divmod(row % clocks.num_warps, clocks.num_ctas)
        own = clocks.lane_agent(warp) if row >= clocks.num_warps else warp
        known = _NOTHING
        for (agent, view, of_loose), observed in self._observed[cta].items():
            if of_loose != loose or view >= len(clocks.views):
                continue
            epoch = int(clocks.views[view, row, agent])
            if for_engine and len(clocks.views) > BY_GLOBAL_PROXY:
                epoch = min(epoch, int(clocks.views[BY_GLOBAL_PROXY, row, agent]))
            if agent != own and agent == clocks.lane_agent(warp):
                epoch = min(epoch, int(clocks.seen_by_lanes[row, agent]))
            known = _merged(known, observed.until(epoch))
        return known


def _merged(a: Counts, b: Counts) -> Counts:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    if len(shorter) == 0:
        return longer
    merged = longer.copy()
    np.maximum(merged[: len(shorter)], shorter, out=merged[: len(shorter)])
    return merged
