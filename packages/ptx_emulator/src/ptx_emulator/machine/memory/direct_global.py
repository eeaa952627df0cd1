# SPDX-License-Identifier: Apache-2.0
"""Plain loads and stores of global memory, each as one call of native code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Ints, Mask
from ptx_emulator.machine.checks.flights import Flights
from ptx_emulator.machine.lanes import GLOBAL_BASE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.allocation import Allocation
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.machine.storage.owners import Owners
from ptx_emulator.machine.storage.storage import WIDE, Storage
from ptx_emulator.native import Native
from ptx_emulator.native.frames import frame
from ptx_emulator.program.ordering import WEAK

MOST_VALUES = 4  # of a lane
NEWEST = 11  # where in its frame a launch has the number of the last writer or reader
UNWRITTEN, WRITES, READS, NO_WRITES, RECORD = 1, 2, 4, 8, 16  # what native code looks at

_Key = tuple[int, int, int]  # an instruction, the bytes of a value, values


@dataclass
class _Site:
    """An instruction, and the allocation that its addresses lie in."""

    allocation: Allocation
    frame: Ints
    read_only: bool
    tracked: bool  # whether its reads are recorded
    used: bool = False


class Data(Protocol):
    """The memory that is accessed, as far as it is needed here."""

    owners: Owners
    memory: GlobalMemory
    flights: Flights

    @property
    def storage(self) -> Storage: ...

    def use(self, allocation: Allocation, what: str) -> None: ...

    def may_be_written(self, allocation: Allocation) -> bool: ...


class DirectGlobal:
    """The accesses of which nothing has to be said. Where anything is unusual, or may be wrong,
    nothing is done, and the caller has to look."""

    def __init__(
        self, launch: Launch, memory: Data, native: Native, first_writer: int, agents: int
    ) -> None:
        clocks, self._bytes = launch.clocks, memory.storage.bytes
        self._memory = memory
        self._native = native
        self._first_writer = first_writer
        self._orderings = launch.program.orderings
        self._sites: dict[_Key, _Site | None] = {}
        self._frame = frame(
            *(self._bytes, launch.counters.global_counts, clocks.seen, clocks.seen_by_lanes),
            *(GLOBAL_BASE, first_writer, agents, clocks.warps_per_cta, clocks.num_agents),
            *(clocks.num_ctas, clocks.num_warps, 0),
        )

    def load(
        self, sel: Selection, addr: NDArray[Any], size: int, n: int, mask: Mask, pc: int
    ) -> tuple[NDArray[Any], ...] | None:
        """The values of a load; None where the caller has to make it."""
        key = pc, size, n
        site = self._sites[key] if key in self._sites else self._find(addr, key)
        if site is None:
            return None
        allocation, how = site.allocation, RECORD if site.tracked else 0
        if self._memory.flights.over(allocation):
            return None
        if allocation.newest > self._first_writer:
            how |= NO_WRITES if site.read_only else WRITES
        if not allocation.filled:
            how |= UNWRITTEN
        if site.tracked:
            allocation.keep_reads()
        part = allocation.part(size * n) if how else 1
        out = np.empty((n, sel.count), WIDE[size])
        where = self._frame, sel.frame, site.frame, addr, mask
        lanes = self._native.load_global(*where, part, how, *allocation.tables, out)
        if lanes < 0:
            del self._sites[key]
            return None
        if site.tracked:
            newest = int(self._frame[NEWEST])
            allocation.newest_reader = max(allocation.newest_reader, newest)
        if lanes and not site.used:
            site.used = True
            self._memory.use(allocation, "load")
        return tuple(out)

    def store(
        self,
        sel: Selection,
        addr: NDArray[Any],
        size: int,
        values: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> int:
        """Make a store; how many lanes met another agent's, and have yet to be looked at and made,
        or a negative number where the caller has to make all of it."""
        count = len(values)
        key = pc, size, count
        site = self._sites[key] if key in self._sites else self._find(addr, key)
        if site is None or count > MOST_VALUES:
            return -1
        allocation, how = site.allocation, 0
        part = allocation.part(size * count)
        if allocation.newest > self._first_writer:
            how |= WRITES
        if allocation.newest_reader > self._first_writer:
            how |= READS
        where = self._frame, sel.frame, site.frame, addr, mask
        given = (*values, *(None,) * (MOST_VALUES - count))
        met = int(self._native.store_global(*where, part, how, *allocation.tables, *given))
        if met < 0:
            del self._sites[key]
            return met
        newest = int(self._frame[NEWEST])
        allocation.newest = max(allocation.newest, newest)
        if newest and not site.used:
            site.used = True
            self._memory.use(allocation, "store")
        if not met:
            self._memory.storage.changes += 1
        return met

    def _find(self, addr: NDArray[Any], key: _Key) -> _Site | None:
        """The site of an instruction; None where it is not made directly."""
        pc, size, n = key
        ordering = self._orderings.get(pc, WEAK)
        if ordering.strong or self._memory.storage.bytes is not self._bytes:
            self._sites[key] = None
            return None
        owner = self._memory.owners.get(pc)
        begin = int(addr[0]) - GLOBAL_BASE if owner is None else owner.begin
        allocation = self._memory.memory.find(begin)
        if allocation is None or allocation.owned is not None:
            return None
        place = allocation.start, allocation.end, allocation.start
        tracked = self._memory.may_be_written(allocation)
        site = _Site(allocation, frame(pc, size * n, size, *place), ordering.read_only, tracked)
        self._sites[key] = site
        return site
