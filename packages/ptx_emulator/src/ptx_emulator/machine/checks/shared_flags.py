# SPDX-License-Identifier: Apache-2.0
"""Locks and flags in shared memory: which accesses need no order, and the order that they make."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Bools, Ints, actors
from ptx_emulator.machine.checks.flag_order import Actor, FlagOrder
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.program.ordering import WEAK


class SharedFlags:
    """Atomics, volatile stores and looks at flags may meet each other without order. Behind fences
    they order what threads did before."""

    def __init__(self, launch: Launch) -> None:
        program = launch.program
        self._clocks = launch.clocks
        self._orderings = program.orderings
        self._loose = program.flag_reads + program.strong_stores + program.atomics
        self.atomics = program.atomics
        self.have_order = program.looks_at_shared_flags
        self._order = FlagOrder(launch.clocks) if self.have_order else None

    def strong(self, pc: int) -> bool:
        """Whether an access is more than a plain load or store."""
        return self._orderings.get(pc, WEAK).strong

    def may_meet(self, pc: int, others: Ints) -> Bools:
        """Whether an access may meet those of other instructions without order."""
        if pc not in self._loose:
            return np.zeros(others.shape, bool)
        return np.isin(others, self._loose)

    def observe(self, access: Access) -> None:
        """Strong loads, and atomics whose results are used, learn from their places."""
        if self._order is not None:
            for warp, alone, place in actors(access):
                self._order.observe(Actor(warp, alone), place, self._orderings[access.pc])

    def publish(self, access: Access, adds: bool) -> None:
        """Strong stores, and atomics, tell who reads their places what was done before."""
        if self._order is not None:
            for warp, alone, place in actors(access):
                self._order.publish(Actor(warp, alone), place, self._orderings[access.pc], adds)

    def order(self, late: Bools, clock_row: Ints, agent: Ints, epoch: NDArray[Any]) -> Bools:
        """Those of the accesses [lanes, parts] of threads of a CTA that flags order."""
        ordered = np.zeros(late.shape, bool)
        if self._order is None:
            return ordered
        clocks = self._clocks
        for place in zip(*np.nonzero(late & (agent < 2 * clocks.warps_per_cta)), strict=True):
            row = int(clock_row[place[0]]) // clocks.num_agents
            cta = row % clocks.num_warps % clocks.num_ctas
            theirs = int(agent[place]), int(epoch[place])
            ordered[place] = self._order.covers(row, cta, *theirs, loose=False)
        return ordered
