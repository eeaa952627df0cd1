# SPDX-License-Identifier: Apache-2.0
"""Accesses to the shared memory of other CTAs of the cluster, which must not have ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Bools, Thread, alone_among
from ptx_emulator.machine.launch.launch import Launch

ENDED = "cluster-exit"


class _Visit(NamedTuple):
    """The last access of an agent to the memory of a CTA: in which epoch, and by which thread."""

    epoch: int
    thread: Thread


class Visits:
    """The last access of every agent to the shared memory of every other CTA of its cluster."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._last: dict[tuple[int, int, int], _Visit] = {}  # by cluster, rank visited, and agent

    def add(self, access: Access, ranks: NDArray[np.int64], other: Bools) -> None:
        """Lanes of an access visit the CTAs of `ranks`, where `other` holds."""
        clocks, lanes, sel = self._launch.clocks, self._launch.lanes, access.sel
        away = other & (ranks != lanes.rank[sel.index])
        if access.mask is not None:
            away &= access.mask
        alone = alone_among(sel, access.mask)
        agents = np.where(alone, clocks.lane_agent(sel.warp), sel.warp)
        keys = np.stack((sel.cta, ranks, agents), axis=1)[away]
        distinct, first = np.unique(keys, axis=0, return_index=True)
        places = np.flatnonzero(away)[first].tolist()
        for (cluster, rank, agent), lane in zip(distinct.tolist(), places, strict=True):
            epoch = int(clocks.seen[sel.warp_id[lane], sel.warp[lane]])
            self._last[cluster, rank, agent] = _Visit(epoch, Thread(sel, lane, access.pc))

    def report(self) -> None:
        """Find the visits that no warp of the CTA knew to be over when it ended."""
        launch = self._launch
        seen, warps = launch.clocks.seen, launch.clusters.warps_in_cta
        for (cluster, rank, agent), visit in self._last.items():
            rows = (rank * warps + np.arange(warps)) * launch.num_ctas + cluster
            if int(seen[rows, agent].max()) < visit.epoch:
                cta = launch.clusters.cta(cluster, rank * warps)
                detail = f"access to the shared memory of CTA {cta}, which may have ended"
                launch.findings.report_thread(ENDED, detail, visit.thread)
