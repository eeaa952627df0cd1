# SPDX-License-Identifier: Apache-2.0
"""Vector clocks: which operations happened before the next one of each warp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.machine.machine import Machine

MBARRIER_SLOTS = 64
WARPS_PER_GROUP = 4

Clock = NDArray[np.int32]
Index = TypeVar("Index", int, NDArray[np.int64])


@dataclass(frozen=True)
class Released:
    """What a warp had seen when it arrived at a barrier without waiting there."""

    seen: Clock
    seen_by_proxy: Clock


class Clocks:
    """One vector clock per warp, with one component per agent of its CTA.

    Agents are numbered inside a CTA: its warps, the cp.async engine of every warp, mbarrier slots,
    the wgmma engine of every warpgroup, the bulk-store engine of every warp. A warp's own component
    is its epoch. `seen` is what happened before for the warp, `seen_by_proxy` for its asynchronous
    engines, and `seen_by_lanes` for each of its lanes as to what the other lanes did.
    """

    def __init__(self, machine: Machine) -> None:
        self.num_ctas = machine.num_ctas
        self.warps_per_cta = machine.warps_per_cta
        self.groups_per_cta = -(-self.warps_per_cta // WARPS_PER_GROUP)
        self._copies = self.warps_per_cta
        self._barriers = 2 * self.warps_per_cta
        self._wgmma = self._barriers + MBARRIER_SLOTS
        self._bulk = self._wgmma + self.groups_per_cta
        self.num_agents = self._bulk + self.warps_per_cta
        shape = (machine.num_warps, self.num_agents)
        self.seen: Clock = np.zeros(shape, np.int32)
        self.seen_by_proxy: Clock = np.zeros(shape, np.int32)
        self.seen_by_lanes: Clock = np.zeros(shape, np.int32)
        self._warps: NDArray[np.int64] = np.arange(machine.num_warps)
        self.seen[self._warps, self._warps // self.num_ctas] = 1
        self.version = 0  # changes with any warp's epoch

    def copy_agent(self, warp: Index) -> Index:
        return self._copies + warp

    def barrier_agent(self, slot: Index) -> Index:
        return self._barriers + slot

    def wgmma_agent(self, group: Index) -> Index:
        return self._wgmma + group

    def bulk_agent(self, warp: Index) -> Index:
        return self._bulk + warp

    def describe(self, agent: int) -> str:
        """An agent in words."""
        if agent < self._copies:
            return f"warp {agent}"
        if agent < self._barriers:
            return f"cp.async of warp {agent - self._copies}"
        if agent < self._wgmma:
            return f"a bulk load on mbarrier slot {agent - self._barriers}"
        if agent < self._bulk:
            return f"wgmma of warpgroup {agent - self._wgmma}"
        return f"a bulk store of warp {agent - self._bulk}"

    def epochs(self, warp_ids: NDArray[np.int64]) -> Clock:
        """The epochs of warps: their own entries."""
        epochs: Clock = self.seen[warp_ids, warp_ids // self.num_ctas]
        return epochs

    def tick(self, sel: Selection) -> None:
        """Start a new epoch: what follows is not covered by what was released before."""
        self._tick(sel.warps)

    def sync_warp(self, sel: Selection) -> None:
        """__syncwarp: lanes may rely on each other's past."""
        self.seen_by_lanes[sel.warps] = self.seen[sel.warps]
        self._tick(sel.warps)

    def fence_proxy(self, sel: Selection) -> None:
        """fence.proxy.async: the past becomes visible to asynchronous engines."""
        self.seen_by_proxy[sel.warps] = self.seen[sel.warps]
        self._tick(sel.warps)

    def acquire(self, warp_id: int, seen: Clock, seen_by_proxy: Clock, whole_warp: bool) -> None:
        """A wait that passed: one warp takes over what others released."""
        np.maximum(self.seen[warp_id], seen, out=self.seen[warp_id])
        np.maximum(self.seen_by_proxy[warp_id], seen_by_proxy, out=self.seen_by_proxy[warp_id])
        if whole_warp:
            lanes = self.seen_by_lanes[warp_id]
            np.maximum(lanes, seen, out=lanes)

    def release(self, warp_id: int) -> Released:
        """A warp arrives at a barrier and goes on; give the result to `join`."""
        released = Released(self.seen[warp_id].copy(), self.seen_by_proxy[warp_id].copy())
        self._tick(np.array([warp_id]))
        return released

    def join(self, warp_ids: NDArray[np.int64], released: Sequence[Released] = ()) -> None:
        """A barrier that completes: the waiting warps of every CTA learn what all of them knew.

        `released` holds the warps that only arrived; the waiting warps are then of one CTA.
        """
        if len(warp_ids) == 0:
            return
        order = np.argsort(warp_ids % self.num_ctas, kind="stable")
        ids = warp_ids[order]
        bounds = np.flatnonzero(np.diff(ids % self.num_ctas)) + 1
        sizes = np.diff(np.concatenate(([0], bounds, [len(ids)])))
        same_size = bool((sizes == sizes[0]).all())
        groups = [ids.reshape(len(sizes), -1)] if same_size else np.split(ids, bounds)
        for group in groups:
            warps = np.atleast_2d(group)
            for clock in (self.seen, self.seen_by_proxy):
                known = clock[warps].max(axis=1)
                for arrived in released:
                    more = arrived.seen if clock is self.seen else arrived.seen_by_proxy
                    np.maximum(known, more, out=known)
                clock[warps] = known[:, None]
            self.seen_by_lanes[warps] = self.seen[warps]
        self._tick(warp_ids)

    def join_all(self) -> None:
        """A barrier of all warps of every CTA."""
        shape = (self.warps_per_cta, self.num_ctas, self.num_agents)
        for clock in (self.seen, self.seen_by_proxy):
            by_warp = clock.reshape(shape)
            by_warp[:] = by_warp.max(axis=0)
        self.seen_by_lanes[:] = self.seen
        self._tick(self._warps)

    def _tick(self, warp_ids: NDArray[np.int64]) -> None:
        self.seen[warp_ids, warp_ids // self.num_ctas] += 1
        self.version += 1
