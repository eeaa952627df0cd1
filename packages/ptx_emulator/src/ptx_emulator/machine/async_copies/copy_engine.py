# SPDX-License-Identifier: Apache-2.0
"""What all bulk copies have in common: how they start, and their place in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Ints, Mask, Thread
from ptx_emulator.machine.async_copies.bulk_groups import BulkGroups
from ptx_emulator.machine.barriers.mbarriers import Barrier, MBarriers
from ptx_emulator.machine.clusters import map_address
from ptx_emulator.machine.lanes import SHARED_BASE
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.global_access import GlobalAccess
from ptx_emulator.machine.memory.shared import SharedMemory
from ptx_emulator.machine.storage.storage import CHUNK, POISONED

Array = NDArray[Any]

SECTOR_BYTES = 32


class Chunks(NamedTuple):
    """Chunks of shared memory, in the order of a copy: they lie from `first` to before `end`."""

    places: Ints
    first: int
    end: int

    @classmethod
    def row(cls, count: int) -> Chunks:
        """As many one after the other."""
        return cls(np.arange(count), 0, count)


class CopyEngine:
    """Moves whole 16-byte chunks of shared memory for the threads that ask."""

    def __init__(
        self,
        launch: Launch,
        shared: SharedMemory,
        global_access: GlobalAccess,
        mbarriers: MBarriers,
        bulk_groups: BulkGroups,
    ) -> None:
        self._launch = launch
        self._shared = shared
        self._global_access = global_access
        self._mbarriers = mbarriers
        self._bulk_groups = bulk_groups

    def start_load(
        self, thread: Thread, chunks: Chunks, data: Array, barrier: Barrier, nbytes: int
    ) -> None:
        """Poison the chunks now; `data` lands, and completes `nbytes`, when somebody waits."""
        target = self._shared.chunks

        def land() -> None:
            target[chunks.places] = data

        self._mbarriers.check_fenced(thread, barrier)
        number = thread.sel.number(thread.lane)
        agent, epoch = self._mbarriers.start_transfer(barrier, nbytes, number, thread.pc, land)
        if chunks.places.size:
            self._shared.engine_write(
                thread, chunks.first * CHUNK, chunks.end * CHUNK, agent, epoch
            )
            target[chunks.places] = POISONED[CHUNK]

    def copies(
        self, thread: Thread, dst: Array, mbarrier: Array, ranks: Array | None
    ) -> Iterator[tuple[Array, Array]]:
        """Where a thread's load goes: its address and mbarrier, or those at the same places in
        every CTA of the cluster whose bit is set in `ranks`."""
        if ranks is None:
            yield dst, mbarrier
            return
        chosen = int(ranks[thread.lane])
        size = self._launch.clusters.size
        if chosen >> size or chosen == 0:
            detail = f"a multicast to the CTAs of mask {chosen:#x}, in a cluster of {size}"
            self.report("tma-coordinates", detail, thread)
        for rank in (rank for rank in range(size) if chosen >> rank & 1):
            number = np.full(len(dst), rank, np.uint32)
            yield map_address(dst, number), map_address(mbarrier, number)

    def start_store(
        self, thread: Thread, chunks: Ints, put: Callable[[Array], None], target: Access
    ) -> None:
        """Read the chunks, and give their bytes to `put`, when the waits of the thread ask. Until
        then they are on their way to `target`, which is resolved."""
        memory = self._global_access
        first = target.where[target.lanes[:1]].tolist()
        flight = None
        if first and self._launch.checks:
            flight = memory.flights.start(memory.memory.find(first[0]), target)

        def land(data: Array) -> None:
            memory.flights.land(flight)
            put(data)

        self._bulk_groups.start(thread, chunks, land)

    def chunks_in_shared(
        self, thread: Thread, address: int, order: Chunks, what: str
    ) -> Chunks | None:
        """Flat chunks at `order` from an address; None, and a finding, where there are none."""
        address, base = self._shared.located(thread, address)
        offset = address - SHARED_BASE
        first = offset + min(order.first, 0) * CHUNK
        last = offset + order.end * CHUNK
        limit = self._launch.shared_limit
        if first < 0 or last > limit:
            detail = f"{what} covers shared bytes {first} to {last} of {limit}"
            self.report("shared-out-of-bounds", detail, thread, np.full(thread.sel.count, address))
            return None
        start = (base + address) // CHUNK
        return Chunks(order.places + start, order.first + start, order.end + start)

    def access(self, thread: Thread, where: Array, size: int, mask: Mask, what: str) -> Access:
        """The access to global memory: by one thread, once for every piece of `size` bytes."""
        repeated = self._launch.lanes.repeated(thread.sel.number(thread.lane), len(where))
        return Access(repeated, where, size, mask, thread.pc, what)

    def report(self, kind: str, detail: str, thread: Thread, address: Array | None = None) -> None:
        self._launch.findings.report_thread(kind, detail, thread, address)
