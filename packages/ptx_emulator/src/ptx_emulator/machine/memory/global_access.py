# SPDX-License-Identifier: Apache-2.0
"""The accesses of a launch to global memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Access, Bools, Ints, Mask
from ptx_emulator.machine.arithmetic.atomics import apply_atomic
from ptx_emulator.machine.checks.flights import Flights
from ptx_emulator.machine.checks.global_shadow import ADDITION, ATOMIC, GlobalShadow
from ptx_emulator.machine.checks.kernel_before import KernelBefore
from ptx_emulator.machine.checks.values import Values
from ptx_emulator.machine.clusters import SHARED_END
from ptx_emulator.machine.lanes import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    Selection,
)
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.direct_global import DirectGlobal
from ptx_emulator.machine.memory.memory import Memory
from ptx_emulator.machine.storage.allocation import Allocation
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.machine.storage.storage import Storage

WINDOWS = (  # of addresses that are no global ones
    (0, SHARED_BASE, "the pointer is null"),
    (SHARED_BASE, SHARED_END, "a pointer to shared memory is taken for one to global memory"),
    (LOCAL_BASE, PARAM_BASE, "a pointer to a local variable is taken for one to global memory"),
)
USES = {"cp.async": "load"}  # accesses that are a use under another name


class _Within(NamedTuple):
    """A resolved access of which all lanes lie in one allocation."""

    access: Access
    allocation: Allocation


class GlobalAccess(Memory):
    """Loads, stores and atomics of one launch."""

    space = "global"
    base = GLOBAL_BASE

    def __init__(self, launch: Launch, memory: GlobalMemory, kernel_before: KernelBefore) -> None:
        self.memory = memory
        self._counters = launch.counters
        self._native = launch.native
        self._findings = launch.findings
        self._checks = launch.checks
        self._first_writer = memory.writers
        self._fenced = launch.program.has_fences
        self._written: set[int] | None = None  # starts of allocations that are stored to
        self._shadow = GlobalShadow(launch, self._first_writer)
        self._writing = launch.program.global_writes
        self._kernel_before = kernel_before
        memory.last_launch = memory.writers
        memory.writers += self._shadow.num_writers
        self.flights = Flights(launch)
        self._covering: Allocation | None = None  # where the last access was looked for
        self._within: _Within | None = None  # what was resolved last
        self._uses: dict[int, set[str]] = {}  # what was done to each allocation
        self._direct: DirectGlobal | None = None
        if launch.native is not None and launch.checks and not kernel_before.watched:
            agents = self._shadow.agents
            self._direct = DirectGlobal(launch, self, launch.native, self._first_writer, agents)

    @property
    def storage(self) -> Storage:
        return self.memory.storage

    def read(self, access: Access) -> Access:
        resolved = self.resolve(access)
        if self._checks:
            self._counters.global_access(access)
            if self._shadow.ordering(access.pc).strong:
                self._shadow.observe(resolved)
            self.check_read(resolved)
        return resolved

    def write(self, access: Access) -> Access:
        return self._write(access, None)

    def store(
        self,
        sel: Selection,
        addr: NDArray[Any],
        size: int,
        values: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> None:
        met = -1
        if self._direct is not None:
            met = self._direct.store(sel, addr, size, values, mask, pc)
            if met == 0:
                return
        access = Access(sel, addr, size * len(values), mask, pc, "store")
        stored = Values(values, self.storage)
        resolved = self._write(access, stored) if met < 0 else self._met(access, stored)
        self.storage.scatter(resolved.where, size, values, resolved.mask)

    def _met(self, access: Access, values: Values) -> Access:
        """Look at a store that is recorded, of which lanes met other agents'."""
        resolved = self.resolve(access)
        for allocation, lanes in self._by_allocation(resolved):
            self._shadow.meet_at_once(allocation, lanes, resolved, values)
        return resolved

    def load(
        self, sel: Selection, addr: NDArray[Any], size: int, n: int, mask: Mask, pc: int
    ) -> tuple[NDArray[Any], ...]:
        if self._direct is not None:
            loaded = self._direct.load(sel, addr, size, n, mask, pc)
            if loaded is not None:
                return loaded
        return super().load(sel, addr, size, n, mask, pc)

    def fetch(self, access: Access) -> NDArray[Any] | None:
        """What a plain load reads, as numbers of the widest kind; None where it has to be made."""
        sel, where, nbytes, mask, pc, *_ = access
        if self._direct is None:
            return None
        loaded = self._direct.load(sel, where, nbytes, 1, mask, pc)
        return None if loaded is None else loaded[0]

    def _write(self, access: Access, values: Values | None) -> Access:
        resolved = self.resolve(access)
        if self._checks:
            self._counters.global_access(access)
            self.check_write(resolved, values)
            if self._shadow.ordering(access.pc).strong:
                self._shadow.publish(resolved, adds=False)
        return resolved

    @property
    def exchanges(self) -> bool:
        """Whether threads may have exchanged data: an allocation was used in more than one way."""
        return any(len(uses) > 1 for uses in self._uses.values())

    def check_read(self, access: Access) -> None:
        """Look at a read that is resolved: was everything written, and by whom?"""
        for allocation, lanes in self._by_allocation(access):
            if self.flights.over(allocation):
                self.flights.check(allocation, lanes, access)
            elif not allocation.filled:
                self._check_written(allocation, lanes, access)
            self._kernel_before.check(allocation, lanes, access)
            tracked = self.may_be_written(allocation)
            if tracked or allocation.newest > self._first_writer:
                self._shadow.read(allocation, lanes, access, tracked)

    def watches(self, offset: int) -> bool:
        """Whether a read of the allocation there has to be looked at."""
        allocation = self.memory.find(offset)
        if allocation is None:
            return False
        written = allocation.newest > self._first_writer or self.may_be_written(allocation)
        written |= self.flights.over(allocation)
        return written or not allocation.filled or self._kernel_before.watched

    def check_write(self, access: Access, values: Values | None = None) -> None:
        """Check and record a write that is resolved, of `values` if they are known."""
        for allocation, lanes in self._by_allocation(access):
            self._kernel_before.check(allocation, lanes, access)
            self._shadow.write(allocation, lanes, access, values)

    def may_be_written(self, allocation: Allocation) -> bool:
        """Whether stores of threads reach it, as far as their addresses tell."""
        if self._written is None:
            owners = (self.owners.get(pc) for pc in self._writing)
            self._written = {owner.begin for owner in owners if owner is not None}
        return allocation.start in self._written

    def atomic(
        self,
        sel: Selection,
        op: str,
        type: str,
        addr: NDArray[Any],
        value: NDArray[Any],
        compare: NDArray[Any] | None,
        mask: Mask,
        pc: int,
        ordered: bool = True,
    ) -> NDArray[Any]:
        """The value before; accesses to one address happen in the order of the lanes.

        They order the threads that make them if somebody looks at the value before. Otherwise they
        publish, as `reduce` does.
        """
        access = Access(sel, addr, value.dtype.itemsize, mask, pc, "atomic")
        resolved = self.resolve(access)
        before = np.zeros(sel.count, value.dtype)
        kind = ATOMIC if ordered else ADDITION
        before[resolved.lanes] = self.change(resolved, op, type, (value,), compare, kind)
        if self._checks:
            self._counters.global_access(access)
            if not ordered:
                self._publish(resolved, value)
            elif value.dtype.kind != "f":
                self._shadow.meet(resolved)
        return before

    def reduce(
        self,
        sel: Selection,
        op: str,
        type: str,
        addr: NDArray[Any],
        values: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> None:
        """Atomics without a result, at neighbouring places where there are several values."""
        access = Access(sel, addr, values[0].dtype.itemsize * len(values), mask, pc, "atomic")
        resolved = self.resolve(access)
        self.change(resolved, op, type, values)
        if self._checks:
            self._counters.global_access(access)
            self._publish(resolved, values[0])

    def _publish(self, access: Access, value: NDArray[Any]) -> None:
        """Atomics of whole numbers, whose results nobody sees, may be flags."""
        if value.dtype.kind != "f" and (self._fenced or self._shadow.ordering(access.pc).releases):
            self._shadow.publish(access, adds=True)

    def change(
        self,
        access: Access,
        op: str,
        type: str,
        values: Sequence[NDArray[Any]],
        compare: NDArray[Any] | None = None,
        kind: int = ADDITION,
    ) -> NDArray[Any]:
        """Apply atomics that are resolved; the values before at the last of the places."""
        lanes = access.lanes
        if self._checks:
            self._check_change(access, kind)
        cells = self.storage.bytes.view(values[0].dtype)
        first = access.where[lanes] // values[0].dtype.itemsize
        expected = None if compare is None else compare[lanes]
        for index, value in enumerate(values):
            before = apply_atomic(cells, op, type, first + index, value[lanes], expected)
            self.storage.changes += bool((cells[first + index] != before).any())
        return before

    def _check_change(self, access: Access, kind: int) -> None:
        for allocation, lanes in self._by_allocation(access):
            self._check_written(allocation, lanes, access)
            self._kernel_before.check(allocation, lanes, access)
            self._shadow.change(allocation, lanes, access, kind)

    def _resolved(self, access: Access) -> Access | None:
        self._covering = None
        resolved = super()._resolved(access)
        if resolved is not None and self._covering is not None:
            self._within = _Within(resolved, self._covering)
        return resolved

    def covers(self, begin: int, end: int) -> bool:
        allocation = self._covering = self.memory.find(begin)
        return allocation is not None and allocation.owned is None and end <= allocation.end

    def inside(self, offsets: Ints, nbytes: int) -> Bools:
        inside = np.zeros(len(offsets), bool)
        for allocation in self.memory.allocations:
            lanes = (offsets >= allocation.start) & (offsets + nbytes <= allocation.end)
            if lanes.any():
                inside[lanes] = allocation.owns(offsets[lanes], nbytes)
        return inside

    def outside(self, offset: int) -> str:
        for begin, end, what in WINDOWS:
            if begin <= offset + GLOBAL_BASE < end:
                return f"outside of what is allocated: {what}"
        return "outside of what is allocated"

    def _by_allocation(self, access: Access) -> Iterator[tuple[Allocation, Ints]]:
        """The lanes of a resolved access, by the allocation their offsets lie in."""
        lanes, offsets = access.lanes, access.where
        if self._within is not None and self._within.access is access and lanes.size:
            self.use(self._within.allocation, access.what)
            yield self._within.allocation, lanes
            return
        while lanes.size:
            allocation = self.memory.find(int(offsets[lanes[0]]))
            if allocation is None:
                raise EmulatorError("an access outside of what is allocated was let through")
            self.use(allocation, access.what)
            there = (offsets[lanes] >= allocation.start) & (offsets[lanes] < allocation.end)
            yield allocation, lanes[there]
            lanes = lanes[~there]

    def use(self, allocation: Allocation, what: str) -> None:
        """Remember what was done to an allocation."""
        self._uses.setdefault(allocation.start, set()).add(USES.get(what, what))

    def _check_written(self, allocation: Allocation, lanes: Ints, access: Access) -> None:
        unset = allocation.unwritten(access.where[lanes], access.nbytes)
        detail = f"{access.what} of {_name(allocation)} that nothing was written to"
        bad = np.zeros(access.sel.count, bool)
        bad[lanes[unset]] = True
        address = access.where + GLOBAL_BASE
        self._findings.report("uninitialised-global", detail, access.pc, access.sel, bad, address)


def _name(allocation: Allocation) -> str:
    return allocation.name or "an allocation"
