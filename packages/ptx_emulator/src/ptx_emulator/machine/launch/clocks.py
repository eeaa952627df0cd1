# SPDX-License-Identifier: Apache-2.0
"""Vector clocks: which operations happened before the next one of each warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.lanes import Bools, Selection
from ptx_emulator.machine.launch.geometry import Geometry
from ptx_emulator.native import Native
from ptx_emulator.program.program import Program

MBARRIER_SLOTS = 64
WARPS_PER_GROUP = 4

Clock = NDArray[np.int32]
Index = TypeVar("Index", int, NDArray[np.int64])
Released = Clock  # what a warp lets others see, [views, agents]

# Views: what happened before, what asynchronous engines may rely on of it in shared and in global
# memory, and what happened before the last fence of a scope.
SEEN, BY_PROXY, BY_GLOBAL_PROXY, BEHIND_CTA_FENCE, BEHIND_GPU_FENCE = range(5)
PROXIES = {"shared": BY_PROXY, "global": BY_GLOBAL_PROXY}
FENCES = {"cta": (BEHIND_CTA_FENCE,), "gpu": (BEHIND_CTA_FENCE, BEHIND_GPU_FENCE)}


class Clocks:
    """Vector clocks per warp, with one component per agent of its CTA.

    Agents are numbered inside a CTA: its warps, a lane of every warp that acts alone, the cp.async
    engine of every warp, mbarrier slots, the wgmma engine and the bulk-store engine of every warp.
    A kernel without mbarriers, wgmma and bulk copies has only the first three kinds.
    `seen` is what happened before for the agent of a row, `seen_by_proxy` for its
    asynchronous engines, and `seen_by_lanes` as to what other lanes of the warp did. Kernels whose
    CTAs exchange what copy engines move have one view more, and those with fences between threads
    three: what happened before the last fence of a kind.

    Row w belongs to the lanes of warp w that act together. Row w + `num_warps` belongs to a lane of
    it that acts alone: it takes part in what they do together, and may have seen more. What it has
    seen reaches the others by __syncwarp, and so does what they did reach it.
    """

    def __init__(self, program: Program, geometry: Geometry, native: Native | None = None) -> None:
        self._native = native
        self._lanes = geometry.lanes
        self._clusters = geometry.clusters
        # What threads may meet at.
        self.barriers = "barrier or mbarrier" if program.has_mbarriers else "barrier"
        self.num_ctas = geometry.num_ctas
        self.num_warps = geometry.num_warps
        self.warps_per_cta = geometry.warps_per_cta
        self.groups_per_cta = -(-self.warps_per_cta // WARPS_PER_GROUP)
        self._copies = 2 * self.warps_per_cta
        self._barriers = self._copies + self.warps_per_cta
        engines = program.uses_engines
        self._wgmma = self._barriers + engines * MBARRIER_SLOTS * geometry.clusters.size
        self._bulk = self._wgmma + engines * WARPS_PER_GROUP * self.groups_per_cta
        self.num_agents = self._bulk + engines * self.warps_per_cta
        views = 5 if program.has_fences else 3 if program.copies_meet_flags else 2
        self.views: Clock = self._at_start(views).copy()
        self.seen: Clock = self.views[SEEN]
        self.seen_by_proxy: Clock = self.views[BY_PROXY]
        self.seen_by_lanes: Clock = np.zeros(self.seen.shape, np.int32)
        self._warps: NDArray[np.int64] = np.arange(self.num_warps)
        self.version = 0  # changes with any warp's epoch
        self.joins = 0  # barriers of all warps so far

    def _at_start(self, views: int) -> Clock:
        """The views when a launch starts: all warps are in their first epoch."""
        known = self._lanes.at_start.get((views, self.num_agents))
        if known is None:
            known = np.zeros((views, 2 * self.num_warps, self.num_agents), np.int32)
            warps = np.arange(self.num_warps)
            for rows in (warps, warps + self.num_warps):
                for agents in (warps // self.num_ctas, self.lane_agent(warps // self.num_ctas)):
                    known[SEEN, rows, agents] = 1
            self._lanes.at_start[views, self.num_agents] = known
        return known

    def lane_agent(self, warp: Index) -> Index:
        return self.warps_per_cta + warp

    def copy_agent(self, warp: Index) -> Index:
        return self._copies + warp

    def barrier_agent(self, slot: Index) -> Index:
        return self._barriers + slot

    def wgmma_agent(self, warp: Index) -> Index:
        return self._wgmma + warp

    def bulk_agent(self, warp: Index) -> Index:
        return self._bulk + warp

    def describe(self, agent: int) -> str:
        """An agent in words."""
        warp = self.warp_of(agent)
        if warp is None:
            return f"a bulk load on mbarrier slot {agent - self._barriers}"
        number, rank = self._clusters.warp(warp), self.rank_of(warp)
        where = f" of cluster rank {rank}" if self._clusters.size > 1 else ""
        if agent < self.warps_per_cta:
            return f"warp {number}{where}"
        if agent < self._copies:
            return f"one lane of warp {number}{where}"
        if agent < self._barriers:
            return f"cp.async of warp {number}{where}"
        if agent < self._bulk:
            return f"wgmma of warpgroup {number // WARPS_PER_GROUP}{where}"
        return f"a bulk store of warp {number}{where}"

    def warp_of(self, agent: int) -> int | None:
        """The warp that an agent belongs to; None of an mbarrier."""
        if self._barriers <= agent < self._wgmma:
            return None
        starts = (0, self.warps_per_cta, self._copies, self._wgmma, self._bulk)
        return agent - max(start for start in starts if start <= agent)

    def rank_of(self, warp: int) -> int:
        """The rank in its cluster of the CTA of a warp."""
        return int(self._clusters.rank(warp))

    def wait_for(self, agent: int) -> str | None:
        """What waits for an engine, or for a copy; None of threads."""
        if agent < self._copies:
            return None
        if agent < self._barriers:
            return "cp.async.wait_group"
        if agent < self._wgmma:
            return "wait for its mbarrier"
        return "wgmma.wait_group" if agent < self._bulk else "cp.async.bulk.wait_group"

    def epochs(self, warp_ids: NDArray[np.int64]) -> Clock:
        """The epochs of warps, which those of their single lanes are too."""
        epochs: Clock = self.seen[warp_ids, warp_ids // self.num_ctas]
        return epochs

    def tick(self, sel: Selection) -> None:
        """Start a new epoch: what follows is not covered by what was released before."""
        self.tick_warps(sel.warps)

    def tick_warp(self, warp_id: int) -> None:
        self.tick_warps(np.array([warp_id]))

    def sync_warp(self, sel: Selection) -> None:
        """__syncwarp: lanes may rely on each other's past."""
        warps = sel.warps_together
        self.views[:, warps] = self.views[:, warps + self.num_warps]
        self._settle(warps)
        self.tick_warps(warps)

    def fence_proxy(
        self, sel: Selection, spaces: Sequence[str] = (), mask: Bools | None = None
    ) -> None:
        """fence.proxy.async: the past becomes visible to asynchronous engines, in some spaces or in
        all of them."""
        self._fence(sel, [PROXIES[space] for space in spaces or PROXIES], mask)

    def fence(self, sel: Selection, scope: str, mask: Bools | None) -> None:
        """A fence between threads: the past is visible to those of a scope that learn of it."""
        self._fence(sel, FENCES[scope], mask)

    def _fence(self, sel: Selection, views: Sequence[int], mask: Bools | None) -> None:
        lanes = self._lanes.part(sel, mask) if mask is None or mask.any() else None
        if lanes is None:
            return
        for rows in (lanes.warps_together, lanes.warps + self.num_warps):
            for view in views:
                if view < len(self.views):
                    self.views[view, rows] = self.seen[rows]
        self.tick_warps(lanes.warps)

    def learn(self, warp_id: int, agent: int, epoch: int, alone: bool) -> None:
        """Lanes of a warp, or one lane, know that an engine has got as far as an epoch."""
        for row in self._rows(warp_id, alone):
            self.seen[row, agent] = max(self.seen[row, agent], epoch)

    def learn_all(
        self, warp_ids: NDArray[np.int64], agents: NDArray[np.int64], epochs: NDArray[Any]
    ) -> None:
        """Warps know that an engine of each has got as far as an epoch."""
        for rows in (warp_ids, warp_ids + self.num_warps):
            self.seen[rows, agents] = np.maximum(self.seen[rows, agents], epochs)

    def acquire(
        self, warp_id: int, visible: Released, *, alone: bool = False, whole_warp: bool = False
    ) -> None:
        """A wait that passed: lanes of a warp, or one lane, take over what others released."""
        for row in self._rows(warp_id, alone):
            views = self.views[:, row]
            np.maximum(views, visible, out=views)
            if alone or whole_warp:
                known = self.seen_by_lanes[row]
                np.maximum(known, visible[SEEN], out=known)

    def acquire_all(
        self, warp_ids: NDArray[np.int64], visible: Released, *, alone: bool, whole_warp: bool
    ) -> None:
        """`acquire` of many warps."""
        if self._native is not None:
            given = self.views, self.seen_by_lanes, warp_ids, visible, alone, whole_warp
            if self._native.take_over(*given) >= 0:
                return
        for warp_id in warp_ids.tolist():
            self.acquire(warp_id, visible, alone=alone, whole_warp=whole_warp)

    def let_see(self, warp_id: int, alone: bool, released: Released) -> None:
        """Add what a warp, or a lane alone, may release (`known_of_group`) to what others have."""
        if self._native is not None:
            warp = warp_id // self.num_ctas
            own = self._wgmma + warp
            mine = warp_id, warp, alone, own, own - warp % WARPS_PER_GROUP
            if self._native.let_see(self.views, self.seen_by_lanes, released, *mine) >= 0:
                return
        np.maximum(released, self.known_of_group(warp_id, alone), out=released)

    def known(self, warp_id: int, alone: bool) -> Released:
        """What the lanes of a warp that act together may release, or one that acts alone."""
        row = warp_id + self.num_warps
        known = self.views[:, row].copy()
        if alone:
            warp = warp_id // self.num_ctas
            known[:, warp] = np.minimum(known[:, warp], self.seen_by_lanes[row, warp])
        return known

    def release(self, warp_id: int, alone: bool = False) -> Released:
        """A warp, or a lane alone, arrives at a barrier and goes on; give the result to `join`."""
        released = self.known(warp_id, alone)
        self.tick_warp(warp_id)
        return released

    def known_of_group(self, warp_id: int, alone: bool) -> Released:
        """What a warp, or a lane alone, may release, for the products of its whole warpgroup too:
        kernels let one warp hand over what all four have multiplied."""
        known = self.known(warp_id, alone)
        warp = warp_id // self.num_ctas
        first = self._wgmma + warp - warp % WARPS_PER_GROUP
        known[:, first : first + WARPS_PER_GROUP] = known[:, [self.wgmma_agent(warp)]]
        return known

    def join(self, warp_ids: NDArray[np.int64], released: Sequence[Released] = ()) -> None:
        """A barrier that completes: the waiting warps of every CTA learn what all of them knew.

        `released` holds the warps that only arrived; the waiting warps are then of one CTA.
        """
        if len(warp_ids) == 0:
            return
        if self._of_one_cta(warp_ids):
            self._meet(warp_ids[None], released)
        else:
            self._join_ctas(warp_ids, released)
        self._settle(warp_ids)
        self.tick_warps(warp_ids)

    def _of_one_cta(self, warp_ids: NDArray[np.int64]) -> bool:
        ctas = warp_ids % self.num_ctas
        return bool((ctas == ctas[0]).all())

    def _meet(self, warps: NDArray[np.int64], released: Sequence[Released]) -> None:
        """Warps [CTAs, warps] of each CTA learn what all of them knew."""
        known = self.views[:, warps + self.num_warps].max(axis=2)
        for arrived in released:
            np.maximum(known, arrived[:, None], out=known)
        self.views[:, warps] = self.views[:, warps + self.num_warps] = known[:, :, None]

    def _join_ctas(self, warp_ids: NDArray[np.int64], released: Sequence[Released]) -> None:
        order = np.argsort(warp_ids % self.num_ctas, kind="stable")
        ids = warp_ids[order]
        bounds = np.flatnonzero(np.diff(ids % self.num_ctas)) + 1
        sizes = np.diff(np.concatenate(([0], bounds, [len(ids)])))
        same_size = bool((sizes == sizes[0]).all())
        groups = [ids.reshape(len(sizes), -1)] if same_size else np.split(ids, bounds)
        for group in groups:
            self._meet(np.atleast_2d(group), released)

    def join_all(self) -> None:
        """A barrier of all warps of every CTA."""
        shape = (len(self.views), 2, self.warps_per_cta, self.num_ctas, self.num_agents)
        by_warp = self.views.reshape(shape)
        by_warp[:] = by_warp[:, 1].max(axis=1)[:, None, None]
        self.seen_by_lanes[:] = self.seen
        self.joins += 1
        self.tick_warps(self._warps)

    def row(self, warp_id: int, alone: bool) -> int:
        """The row of lanes of a warp that act together, or of one that acts alone."""
        return warp_id + self.num_warps * alone

    def _rows(self, warp_id: int, alone: bool) -> tuple[int, ...]:
        row = warp_id + self.num_warps
        return (row,) if alone else (warp_id, row)

    def _settle(self, warp_ids: NDArray[np.int64]) -> None:
        """Let the lanes of warps rely on all that these have seen."""
        seen = self.seen[warp_ids]
        self.seen_by_lanes[warp_ids] = self.seen_by_lanes[warp_ids + self.num_warps] = seen

    def tick_warps(self, warp_ids: NDArray[np.int64]) -> None:
        self.version += 1
        if self._native is not None:
            shape = self.num_ctas, self.warps_per_cta
            if self._native.start_epochs(self.seen, warp_ids, *shape) >= 0:
                return
        warp = warp_ids // self.num_ctas
        epochs = self.seen[warp_ids, warp] + 1
        for row in (warp_ids, warp_ids + self.num_warps):
            self.seen[row, warp] = epochs
            self.seen[row, self.lane_agent(warp)] = epochs
