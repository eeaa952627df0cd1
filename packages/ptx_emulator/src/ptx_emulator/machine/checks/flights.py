# SPDX-License-Identifier: Apache-2.0
"""Bulk stores on their way to global memory: nobody may read what they are writing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptx_emulator.machine.access import Access, Bools, Ints
from ptx_emulator.machine.lanes import GLOBAL_BASE
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.allocation import Allocation

STILL = ", with no cp.async.bulk.wait_group in between; one with .read waits for reads alone"


class Flight(NamedTuple):
    """Pieces of `size` bytes at offsets, by an instruction for a warp of a CTA."""

    start: int  # of the allocation
    offsets: Ints
    size: int
    pc: int
    warp: tuple[int, int]  # CTA, warp in it


class Flights:
    """The bulk stores that no thread has waited for."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._open: dict[int, list[Flight]] = {}

    def start(self, allocation: Allocation | None, access: Access) -> Flight | None:
        """A bulk store that is resolved begins, for one thread."""
        lanes = access.lanes
        if allocation is None or lanes.size == 0:
            return None
        warp = int(access.sel.warp[0])
        clusters = self._launch.clusters
        who = clusters.cta(int(access.sel.cta[0]), warp), clusters.warp(warp)
        offsets = access.where if access.mask is None else access.where[lanes]
        flight = Flight(allocation.start, offsets, access.nbytes, access.pc, who)
        self._open.setdefault(flight.start, []).append(flight)
        return flight

    def land(self, flight: Flight | None) -> None:
        if flight is not None:
            there = self._open[flight.start]
            there[:] = [other for other in there if other is not flight]
            if not there:
                del self._open[flight.start]

    def over(self, allocation: Allocation) -> bool:
        """Whether any is on its way to an allocation."""
        return allocation.start in self._open

    def check(self, allocation: Allocation, lanes: Ints, access: Access) -> None:
        """Look at a read that is resolved."""
        where = access.where[lanes]
        for flight in self._open.get(allocation.start, ()):
            offsets = np.sort(flight.offsets)
            nearest = np.searchsorted(offsets, where + access.nbytes, side="left") - 1
            end = offsets[np.maximum(nearest, 0)] + flight.size
            met = (nearest >= 0) & (end > where)
            if met.any():
                bad: Bools = np.zeros(access.sel.count, bool)
                bad[lanes[met]] = True
                cta, warp = flight.warp
                name = allocation.name or "an allocation"
                detail = f"{access.what} of bytes of {name} that a bulk store of CTA {cta} warp"
                detail += f" {warp} still writes{STILL}"
                address = access.where + GLOBAL_BASE
                first = int(lanes[met][0])
                mine = self._launch.clusters.cta(access.sel.cta[first], access.sel.warp[first])
                kind = "race" if mine == cta else "cta-write-conflict"
                report = self._launch.findings.report
                report(kind, detail, access.pc, access.sel, bad, address, flight.pc)
