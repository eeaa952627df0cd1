# SPDX-License-Identifier: Apache-2.0
"""Shared memory of all CTAs: addresses, data, and the checks of every access."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Bools, Ints, Mask, Thread, alone_among
from ptx_emulator.machine.arithmetic.atomics import apply_atomic
from ptx_emulator.machine.checks.direct_shared import MOST_VALUES, NO_VALUES
from ptx_emulator.machine.checks.engine_shadow import EngineShadow
from ptx_emulator.machine.checks.patterns import Pattern
from ptx_emulator.machine.checks.values import Values
from ptx_emulator.machine.checks.visits import Visits
from ptx_emulator.machine.clusters import WINDOW, map_address, rank_of
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.launch.clocks import Released
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.memory import Memory
from ptx_emulator.machine.storage.storage import CHUNK, POISON, Storage

OBJECT = 8  # bytes of an mbarrier
MOST_PATTERNS = 2048  # that a selection remembers


class SharedMemory(EngineShadow, Memory):
    """One flat array, CTA after CTA; it starts with words `fill` that mean nothing."""

    space = "shared"
    base = SHARED_BASE

    def __init__(self, launch: Launch, fill: np.uint32 = POISON) -> None:
        self._storage = Storage(max(launch.shared_bytes, CHUNK), fill)
        super().__init__(launch, self._storage)
        self.owners = launch.shared_owners
        self._counters = launch.counters
        self._limit = launch.shared_limit
        self._lanes, self._ranks = launch.lanes, launch.clusters.size
        self._visits = Visits(launch)
        self._patterns: dict[Selection, dict[Hashable, Pattern]] = {}
        self._met: dict[int, Released] = {}
        self.layouts: dict[int, set[tuple[int, int]]] = {}  # of boxes: swizzle, bytes of a row
        self._objects: Bools | None = None  # units of 8 bytes that hold an mbarrier
        self.bytes = self.storage.bytes
        self.words = self.storage.words
        self.chunks = self.storage.chunks

    @property
    def storage(self) -> Storage:
        return self._storage

    def covers(self, begin: int, end: int) -> bool:
        return begin >= 0 and end <= self._limit

    def inside(self, offsets: Ints, nbytes: int) -> Bools:
        return (offsets >= 0) & (offsets + nbytes <= self._limit)

    def outside(self, offset: int) -> str:
        return f"at shared byte {offset} of {self._limit}"

    def starts(self, sel: Selection) -> tuple[Ints | None, int]:
        return sel.shared_base, SHARED_BASE

    def resolve(self, access: Access) -> Access:
        return super().resolve(access if self._ranks == 1 else self._in_cluster(access))

    def located(self, thread: Thread, address: int) -> tuple[int, int]:
        """An address of a thread's cluster: that in its CTA, and where this CTA's memory starts."""
        window, local = divmod(address, WINDOW)
        if window == 0 or window > self._ranks:
            return address, int(thread.sel.shared_base[thread.lane])
        return local, int(self._lanes.shared_base(thread.cta, window - 1))

    def named(self, sel: Selection, address: NDArray[Any]) -> NDArray[Any]:
        """The addresses by which all CTAs of a cluster know the same bytes."""
        if self._ranks == 1:
            return address
        return map_address(address, rank_of(address, self._lanes.rank[sel.index]))

    def _in_cluster(self, access: Access) -> Access:
        """The same access, as one to the shared memories that the addresses lie in."""
        window, local = np.divmod(access.where.astype(np.int64), WINDOW)
        other = (window > 0) & (window <= self._ranks)
        if not other.any():
            return access
        sel = access.sel
        base = np.where(other, self._lanes.shared_base(sel.cta, window - 1), sel.shared_base)
        where = np.where(other, local, access.where.astype(np.int64))
        if self._checks:
            self._visits.add(access, window - 1, other)
        return access._replace(sel=replace(sel, shared_base=base, key=None, memo={}), where=where)

    def read(self, access: Access, collective: bool = False) -> Access:
        if not self._checks:
            return self.resolve(access)
        sel, where, nbytes, mask, pc, *_ = access
        found = self.direct_read(sel, where, nbytes, mask, (pc,), collective)
        if found is not None:
            return access._replace(where=self._spread(sel, found[0][0], mask))
        pattern = self._pattern(access)
        self.check_read(pattern.access, collective, pattern)
        self._counters.add_shared(access.pc, pattern.counts)
        return pattern.access

    def load(
        self, sel: Selection, addr: NDArray[Any], size: int, n: int, mask: Mask, pc: int
    ) -> tuple[NDArray[Any], ...]:
        if self._checks and self._flags.strong(pc):
            access = self.read(Access(sel, addr, size * n, mask, pc, "load"))
            self._flags.observe(access)
            return self.storage.gather(access.where, size, n)
        found = self.direct_read(sel, addr, size * n, mask, (pc,), False, size)
        if found is None or found[1] is None:
            return super().load(sel, addr, size, n, mask, pc)
        return tuple(found[1])

    def load_run(
        self, sel: Selection, where: NDArray[Any], size: int, n: int, pcs: tuple[int, ...]
    ) -> NDArray[Any]:
        """Loads of a run of instructions, [run * n, lanes]."""
        found = self.direct_read(sel, where, size * n, None, pcs, False, size)
        if found is None or found[1] is None:
            rows = zip(where, pcs, strict=True)
            return np.concatenate([self.load(sel, row, size, n, None, pc) for row, pc in rows])
        return found[1]

    def write(
        self,
        access: Access,
        collective: bool = False,
        agent: Ints | None = None,
        epoch: Ints | None = None,
        values: Values | None = None,
    ) -> Access:
        """A write of lanes, of `values` if they are known, or of the copy engines of their warps,
        which poison the bytes."""
        resolved = self.direct_write(access, collective, epoch) if self._checks else None
        if resolved is not None:
            return resolved
        if self._checks:
            pattern = self._pattern(access)
            resolved = pattern.access
            self._check_objects(resolved)
            self.check_write(resolved, collective, agent, epoch, values)
            self._counters.add_shared(access.pc, pattern.counts)
        else:
            resolved = self.resolve(access)
        if epoch is not None:
            self.storage.poison(resolved.where[resolved.lanes], access.nbytes)
        return resolved

    def store(
        self,
        sel: Selection,
        addr: NDArray[Any],
        size: int,
        values: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> None:
        access = Access(sel, addr, size * len(values), mask, pc, "store")
        strong = self._checks and self._flags.strong(pc)
        if self._checks and not strong and len(values) <= MOST_VALUES:
            given = (*values, *NO_VALUES[len(values) :])
            if self.direct_write(access, values=given) is not None:
                self.storage.changes += 1
                return
        resolved = self.write(access, values=Values(values, self.storage))
        self.storage.scatter(resolved.where, size, values, resolved.mask)
        if strong:
            self._flags.publish(resolved, adds=False)

    def direct_read(
        self,
        sel: Selection,
        where: NDArray[Any],
        nbytes: int,
        mask: Bools | None,
        pcs: tuple[int, ...],
        collective: bool,
        size: int = 0,
    ) -> tuple[Ints, NDArray[Any] | None] | None:
        """Reads by instructions of which nothing has to be said: the places of the lanes that read
        and, unless `size` is 0, values of `size` bytes. None where they need a closer look."""
        if self._direct is None:
            return None
        self._forget_what_all_know()
        found = self._direct.read(sel, where, nbytes, mask, pcs, collective, size)
        if found is None:
            return None
        read, values = found
        if read.places.size:
            self._put_off(read)
        return read.places, values

    def direct_write(
        self,
        access: Access,
        collective: bool = False,
        epochs: Ints | None = None,
        values: Sequence[NDArray[Any] | None] = NO_VALUES,
    ) -> Access | None:
        """Writes of which nothing has to be said, resolved; None where they need a closer look."""
        if self._direct is None:
            return None
        sel, where, nbytes, mask, pc, *_ = access
        self._record_reads()
        written = self._direct.write(sel, where, nbytes, mask, pc, collective, epochs, values)
        if written is None:
            return None
        self._unsettled = True
        self._engines_wrote |= epochs is not None
        clashes, places = written
        if mask is not None:
            places = self._spread(sel, places[: int(np.count_nonzero(mask))], mask)
        resolved = access._replace(where=places)
        if clashes:
            agents = self._accessors(resolved)[0].agent
            if epochs is not None:
                agents = self._clocks.copy_agent(sel.warp[resolved.lanes])
            last = self._state.last_writers(places[resolved.lanes], nbytes).agent
            words = [word for word in values if word is not None]
            stored = Values(words, self.storage) if words else None
            self._report_clash(resolved, (last != agents[:, None]).any(axis=1), stored)
        return resolved

    def _spread(self, sel: Selection, places: Ints, mask: Mask) -> Ints:
        """Places of the lanes of a mask as those of all; where the others would be, if anywhere."""
        if mask is None:
            return places
        everywhere: Ints = sel.shared_base + SHARED_BASE
        everywhere[mask] = places
        return everywhere

    def _pattern(self, access: Access) -> Pattern:
        """The pattern of an access. One with a finding is made anew, and found again, each time."""
        mask = access.mask
        patterns = self._patterns.setdefault(access.sel, {})
        lanes = None if mask is None else mask.tobytes()
        key = access.pc, access.nbytes, access.where.tobytes(), lanes
        known = patterns.get(key)
        if known is not None:
            return known
        reports = self._findings.reports
        pattern = Pattern(self.resolve(access), self._counters.shared_pattern(access))
        if self._findings.reports == reports:
            if len(patterns) == MOST_PATTERNS:
                patterns.clear()
            patterns[key] = pattern
        return pattern

    def report_unfinished(self) -> None:
        """At the end of the kernel, find accesses to the memory of CTAs that may have ended."""
        self._visits.report()

    def hold_object(self, place: int, held: bool) -> None:
        """The 8 bytes at a flat place are an mbarrier, or are so no more."""
        if self._objects is None:
            self._objects = np.zeros(self.bytes.size // OBJECT, bool)
            if self._direct is not None:
                self._direct.hold(self._objects)
        self._objects[place // OBJECT] = held

    def engine_write(self, thread: Thread, begin: int, end: int, agent: int, epoch: int) -> None:
        objects = self._objects
        if self._checks and objects is not None and objects[begin // OBJECT : end // OBJECT].any():
            place = begin + int(objects[begin // OBJECT :].argmax()) * OBJECT
            address = np.full(thread.sel.count, place) - thread.sel.shared_base
            detail = "a copy over an mbarrier"
            self._findings.report_thread("mbarrier-overwritten", detail, thread, address)
        super().engine_write(thread, begin, end, agent, epoch)

    def _check_objects(self, access: Access) -> None:
        """Look for writes of data over an mbarrier."""
        if self._objects is None:
            return
        last = access.where + (access.nbytes - 1)
        over = self._objects[access.where // OBJECT] | self._objects[last // OBJECT]
        if access.mask is not None:
            over &= access.mask
        if over.any():
            detail = f"{access.what} of {access.nbytes} bytes over an mbarrier"
            address = access.where - access.sel.shared_base
            self._findings.report(
                "mbarrier-overwritten", detail, access.pc, access.sel, over, address
            )

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

        They order the warps that make them if somebody looks at the value before.
        """
        access = self._change(Access(sel, addr, value.dtype.itemsize, mask, pc, "atomic"), ordered)
        lanes = access.lanes
        before = np.zeros(sel.count, value.dtype)
        expected = None if compare is None else compare[lanes]
        before[lanes] = self._apply(access, op, type, value, 0, expected)
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
        nbytes = values[0].dtype.itemsize * len(values)
        access = self._change(Access(sel, addr, nbytes, mask, pc, "atomic"), ordered=False)
        for index, value in enumerate(values):
            self._apply(access, op, type, value, index, None)

    def _change(self, access: Access, ordered: bool) -> Access:
        """Count and check atomics; returns them resolved."""
        resolved = self.resolve(access)
        if self._checks:
            self._counters.shared_access(access)
            self._check_objects(resolved)
            if ordered:
                self._meet(resolved)
                self._flags.observe(resolved)
            self.check_atomic(resolved)
            self._flags.publish(resolved, adds=True)
        return resolved

    def _apply(
        self,
        access: Access,
        op: str,
        type: str,
        value: NDArray[Any],
        index: int,
        expected: NDArray[Any] | None,
    ) -> NDArray[Any]:
        lanes = access.lanes
        places = access.where[lanes] // value.dtype.itemsize + index
        cells = self.bytes.view(value.dtype)
        before = apply_atomic(cells, op, type, places, value[lanes], expected)
        self.storage.changes += bool((cells[places] != before).any())
        return before

    def _meet(self, access: Access) -> None:
        """Warps see what others did before their atomics on the same places."""
        clocks, sel, lanes = self._clocks, access.sel, access.lanes
        alone = alone_among(sel, access.mask)[lanes]
        keys = np.stack((access.where[lanes], sel.warp_id[lanes], alone), axis=1)
        for place, warp, by_itself in np.unique(keys, axis=0).tolist():
            before = self._met.get(place)
            if before is not None:
                clocks.acquire(warp, before, alone=bool(by_itself))
            self._met[place] = clocks.release(warp, alone=bool(by_itself))
