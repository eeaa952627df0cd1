# SPDX-License-Identifier: Apache-2.0
"""Copies of plain bytes between global and shared memory, and additions to global memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Ints, Mask, Thread, executing
from ptx_emulator.machine.arithmetic.atomics import COPIED
from ptx_emulator.machine.async_copies.copy_engine import SECTOR_BYTES, Chunks, CopyEngine
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.storage.storage import CHUNK

Array = NDArray[Any]


@dataclass(frozen=True)
class _Range:
    """Bytes that one thread moves: their addresses in global memory, their chunks in shared."""

    thread: Thread
    where: Ints  # one address a chunk
    chunks: Chunks
    nbytes: int  # what the instruction says


class BulkCopies(CopyEngine):
    """cp.async.bulk and cp.reduce.async.bulk without a tensor."""

    def load(
        self,
        sel: Selection,
        dst: Array,
        src: Array,
        nbytes: Array,
        mbarrier: Array,
        ranks: Array | None,
        mask: Mask,
        pc: int,
    ) -> None:
        """Global to shared: poison now, data when somebody waits for the mbarrier's phase.

        A multicast goes to all CTAs of the cluster that `ranks` names.
        """
        for thread in executing(sel, mask, pc):
            for to, completed in self.copies(thread, dst, mbarrier, ranks):
                moved = self._range(thread, to, src, nbytes)
                barrier = self._mbarriers.find(thread, completed)
                if moved is not None and barrier is not None:
                    self.start_load(thread, moved.chunks, self._read(moved), barrier, moved.nbytes)

    def send(
        self,
        sel: Selection,
        dst: Array,
        src: Array,
        nbytes: Array,
        mbarrier: Array,
        mask: Mask,
        pc: int,
    ) -> None:
        """From the shared memory of a CTA to that of another one of its cluster.

        What is read is taken at once: nothing tells when the source may be written again.
        """
        shared, clocks = self._shared, self._launch.clocks
        for thread in executing(sel, mask, pc):
            moved = self._range(thread, dst, src, nbytes, "shared source address")
            barrier = self._mbarriers.find(thread, mbarrier)
            order = Chunks.row(int(nbytes[thread.lane]) // CHUNK)
            address = int(src[thread.lane])
            chunks = self.chunks_in_shared(thread, address, order, "the bulk copy")
            if moved is None or barrier is None or chunks is None:
                continue
            shared.bulk_read(thread, chunks.places, clocks.bulk_agent(thread.warp), epoch=0)
            data = shared.chunks.take(chunks.places)
            self.start_load(thread, moved.chunks, data, barrier, moved.nbytes)

    def _read(self, moved: _Range) -> Array:
        """The bytes in global memory; zero where they may not be accessed."""
        memory = self._global_access
        source = self._resolve(moved, "bulk load")
        if self._launch.checks:
            memory.check_read(source)
        data: Array = memory.storage.chunks.take(source.where // CHUNK)
        if source.mask is not None:
            data[~source.mask] = 0
        return data

    def store(
        self, sel: Selection, dst: Array, src: Array, nbytes: Array, mask: Mask, pc: int
    ) -> None:
        """Shared to global: part of the thread's open bulk group."""
        for thread in executing(sel, mask, pc):
            moved = self._range(thread, src, dst, nbytes)
            if moved is not None:
                target = self._resolve(moved, "bulk store")
                put = partial(self._write, target)
                self.start_store(thread, moved.chunks.places, put, target)

    def add(
        self, sel: Selection, dst: Array, src: Array, nbytes: Array, mask: Mask, pc: int
    ) -> None:
        """Floats in shared memory are added to those in global memory, each of them atomically."""
        for thread in executing(sel, mask, pc):
            moved = self._range(thread, src, dst, nbytes)
            if moved is not None:
                target = self._resolve(moved, "bulk addition")
                put = partial(self._add, target)
                self.start_store(thread, moved.chunks.places, put, target)

    def _range(
        self,
        thread: Thread,
        shared: Array,
        outside: Array,
        nbytes: Array,
        other: str = "global address",
    ) -> _Range | None:
        """What one thread moves; None, and a finding, if it cannot be moved."""
        size = int(nbytes[thread.lane])
        starts = []
        for what, given in (
            ("shared address", shared),
            (other, outside),
            ("size", nbytes),
        ):
            value = int(given[thread.lane])
            if value % CHUNK:
                detail = f"the {what} of a bulk copy, {value:#x}, is no multiple of {CHUNK}"
                self.report("tma-alignment", detail, thread, shared)
            starts.append(value - value % CHUNK)
        order = Chunks.row(size // CHUNK)
        chunks = self.chunks_in_shared(thread, starts[0], order, "the bulk copy")
        if chunks is None:
            return None
        return _Range(thread, starts[1] + order.places * CHUNK, chunks, size)

    def _resolve(self, moved: _Range, what: str) -> Access:
        """The access to global memory, counted, by the chunks that may be accessed."""
        if self._launch.checks and moved.where.size:
            begin, size = int(moved.where[0]), CHUNK * len(moved.where)
            sectors = -(-(begin % SECTOR_BYTES + size) // SECTOR_BYTES)
            ideal = -(-size // SECTOR_BYTES)
            self._launch.counters.add_global(moved.thread.pc, 1, sectors, ideal, size)
        return self._global_access.resolve(
            self.access(moved.thread, moved.where, CHUNK, None, what)
        )

    def _write(self, target: Access, data: Array) -> None:
        memory = self._global_access
        if self._launch.checks:
            memory.check_write(target)
        lanes = target.lanes
        memory.storage.chunks[target.where[lanes] // CHUNK] = data.view(np.complex128)[lanes]

    def _add(self, target: Access, data: Array) -> None:
        floats = data.view(np.float32).reshape(-1, CHUNK // 4)
        self._global_access.change(target, "add", COPIED, list(floats.T))
