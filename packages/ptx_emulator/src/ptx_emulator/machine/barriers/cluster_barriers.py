# SPDX-License-Identifier: Apache-2.0
"""barrier.cluster: all threads of a cluster arrive, and wait until the others have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.lanes import Ints, Selection
from ptx_emulator.machine.launch.clocks import Released
from ptx_emulator.machine.launch.launch import Launch

Waiting = list[tuple[int, Ints]]  # (block they wait at the end of, lane numbers)


@dataclass
class _Phase:
    """One round of the barrier of a cluster, until all threads have arrived."""

    arrived: int = 0
    released: list[Released] = field(default_factory=list)
    waiting: Waiting = field(default_factory=list)


class ClusterBarriers:
    """The barriers of all clusters. A thread waits for the phase that it arrived at last."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._threads = launch.block * launch.clusters.size
        self._phases: list[list[_Phase]] = [[_Phase()] for _ in range(launch.num_ctas)]
        self._exited = np.zeros(launch.num_ctas, np.int64)
        self._arrivals = np.zeros(launch.num_lanes, np.int64)
        self._released: Waiting = []
        self._used = False  # whether anybody arrived yet

    @property
    def any_open(self) -> bool:
        return self._used and any(phases[-1].waiting for phases in self._phases)

    def arrive(self, s: Selection, releases: bool) -> None:
        """Count the lanes, who tell what they did before if they release it, and go on."""
        self._used = True
        self._arrivals[s.index] += 1
        for cluster in np.unique(s.cta).tolist():
            mask = s.cta == cluster
            phase = self._phases[cluster][-1]
            current = len(self._phases[cluster])
            if (self._arrivals[s.index][mask] != current).any():
                raise EmulatorError("barrier.cluster.arrive twice without barrier.cluster.wait")
            phase.arrived += int(mask.sum())
            if releases:
                warps = np.unique(s.warp_id[mask]).tolist()
                phase.released += [self._launch.clocks.release(warp) for warp in warps]
            self._complete(cluster)

    def wait(self, s: Selection, block: int) -> None:
        """Lanes wait at the end of `block`."""
        numbers = self._launch.lanes.numbers[s.index]
        for cluster in np.unique(s.cta).tolist():
            phases, lanes = self._phases[cluster], numbers[s.cta == cluster]
            for arrival in np.unique(self._arrivals[lanes]).tolist():
                here = lanes[self._arrivals[lanes] == arrival]
                if arrival == 0:
                    raise EmulatorError("barrier.cluster.wait without barrier.cluster.arrive")
                phases[arrival - 1].waiting.append((block, here))
                if arrival < len(phases):
                    self._let_go(phases[arrival - 1])

    def exited(self, s: Selection) -> None:
        """Threads that have ended count as arrived."""
        self._exited += np.bincount(s.cta, minlength=len(self._exited))
        for cluster in np.unique(s.cta).tolist() if self._used else ():
            if self._phases[cluster][-1].arrived:
                self._complete(cluster)

    @property
    def any_released(self) -> bool:
        return bool(self._released)

    def take_released(self) -> Waiting:
        released, self._released = self._released, []
        return released

    def describe(self) -> list[str]:
        lines = []
        for cluster, phases in enumerate(self._phases):
            if phases[-1].waiting:
                needed = self._threads - int(self._exited[cluster])
                arrived = f"{phases[-1].arrived} of {needed} threads"
                lines.append(f"barrier of cluster {cluster}: {arrived} have arrived")
        return lines

    def _complete(self, cluster: int) -> None:
        phase = self._phases[cluster][-1]
        if phase.arrived < self._threads - int(self._exited[cluster]):
            return
        self._phases[cluster].append(_Phase())
        self._let_go(phase)

    def _let_go(self, phase: _Phase) -> None:
        """Waiting lanes see what was released."""
        clocks, lanes = self._launch.clocks, self._launch.lanes
        for _, numbers in phase.waiting:
            for warp in np.unique(lanes.warp_id[numbers]).tolist():
                for released in phase.released:
                    clocks.acquire(warp, released, whole_warp=True)
                clocks.tick_warp(warp)
        self._released += phase.waiting
        phase.waiting = []
