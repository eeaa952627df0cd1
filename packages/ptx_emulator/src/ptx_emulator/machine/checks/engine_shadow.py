# SPDX-License-Identifier: Apache-2.0
"""The race detector for what copy engines and tensor cores do with shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Thread
from ptx_emulator.machine.checks import explain
from ptx_emulator.machine.checks.accessors import Epochs
from ptx_emulator.machine.checks.shadow import UNSYNCED, Shadow, pc_of
from ptx_emulator.machine.checks.shadow_state import (
    COLLECTIVE,
    LANE_BITS,
    LANE_MASK,
    Bools,
    Ints,
    Tags,
    Writers,
)
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.launch.clocks import SEEN
from ptx_emulator.machine.storage.storage import CHUNK


class Steps(NamedTuple):
    """What tensor cores read of every CTA, [steps, n], and how each step is remembered."""

    chunks: Ints
    tags: Ints

    @classmethod
    def of(cls, chunks: Ints, pcs: Sequence[int]) -> Steps:
        return cls(chunks, COLLECTIVE + (np.array(pcs) << LANE_BITS))


class EngineShadow(Shadow):
    """Checks asynchronous reads and writes too, for the threads that start them."""

    def engine_write(self, thread: Thread, begin: int, end: int, agent: int, epoch: int) -> None:
        """An engine writes the flat bytes [begin, end), whole chunks, for a thread."""
        if not self._checks:
            return
        self._record_reads()
        self._unsettled = self._engines_wrote = True
        state = self._state
        seen = self._clocks.known(thread.warp_id, thread.alone)[SEEN]
        tag = COLLECTIVE + (thread.pc << LANE_BITS)
        first, last = begin // CHUNK, -(-end // CHUNK)
        me = thread.warp, int(thread.sel.lane[thread.lane])
        written = agent, epoch, tag
        if self._direct is not None and self._direct.engine_write(first, last, seen, me, written):
            return
        chunks: Ints = np.arange(first, last)
        writers = state.last_writers(chunks * CHUNK, CHUNK)
        late = writers.epoch > seen[writers.agent]
        late &= ~_by_thread(thread, writers.agent, writers.tag)
        if late.any():
            before = int(writers.agent[late][0]), int(writers.tag[late][0])
            self._report_overwrite(thread, "written", before, chunks[late.any(axis=1)])
        known = self._seen_of_readers(seen)
        for reader in np.flatnonzero(self._latest_read > known).tolist():
            read, tags, _ = state.late_reads(reader, chunks * CHUNK, CHUNK, known[reader])
            agent_before = int(self._readers.first[reader])
            read &= ~_by_thread(thread, agent_before, tags)
            if read.any():
                before = agent_before, int(tags[read][0])
                self._report_overwrite(thread, "read", before, chunks[read])
        state.write_range(first, last, agent, epoch, tag)

    def load_of(self, chunk: int) -> int | None:
        """The instruction whose bulk load wrote a flat chunk last; None if another access did."""
        state = self._state
        if state.epoch[chunk] <= 0 or state.agent[chunk] < self._clocks.barrier_agent(0):
            return None
        return int(state.tag[chunk]) >> LANE_BITS

    def bulk_read(self, thread: Thread, chunks: Ints, agent: int, epoch: int) -> None:
        """An engine reads flat 16-byte chunks for a thread."""
        if not self._checks:
            return
        clocks = self._clocks
        row_id = clocks.row(thread.warp_id, thread.alone)
        if self._direct is not None:
            me = thread.warp, int(thread.sel.lane[thread.lane]) if thread.alone else -1
            read = self._readers.of_agent.item(agent), epoch, COLLECTIVE + (thread.pc << LANE_BITS)
            if self._direct.read_in_bulk(chunks, row_id, me, *read):
                return
        if thread.alone:
            writers = self._state.last_writers(chunks * CHUNK, CHUNK)
            synced = clocks.known(thread.warp_id, alone=True)[SEEN, thread.warp]
            late = (writers.agent == thread.warp) & (writers.epoch > synced)
            late &= ~_by_thread(thread, writers.agent, writers.tag)
            if late.any():
                detail = f"asynchronous read of bytes another lane of the warp wrote{UNSYNCED}"
                where, other = chunks[late.any(axis=1)], pc_of(writers.tag[late])
                site = thread.pc, thread.sel, thread.mask
                self._report_engine("intra-warp-race", detail, *site, where, other)
        self.engine_read(
            chunks[None],
            np.array([[row_id]]),
            np.array([agent]),
            np.array([epoch]),
            thread.sel,
            thread.pc,
        )

    def engine_read(
        self,
        chunks: Ints,
        rows: Ints,
        reader_agents: Ints,
        epochs: NDArray[Any],
        sel: Selection,
        pc: int,
    ) -> None:
        """Engines read flat 16-byte chunks [g, n] for those that started them: rows [g, m] of the
        clocks."""
        if not self._checks:
            return
        readers = self._readers.of_agent[reader_agents]
        tag = COLLECTIVE + (pc << LANE_BITS)
        if self._direct is not None:
            flat, when = np.ascontiguousarray(chunks), epochs.astype(np.int64)
            given = flat, np.ascontiguousarray(rows), readers, when, tag
            if not self._direct.engine_read(*given, looked_at=False):
                self._inspect_engine_read(chunks, rows, sel, pc)
                self._direct.engine_read(*given, looked_at=True)
            return
        self._inspect_engine_read(chunks, rows, sel, pc)
        self._state.read_by_engines(chunks, readers, epochs, tag)
        np.maximum.at(self._latest_read, readers, epochs.astype(np.int32))

    def read_operands(
        self, steps: Steps, starts: Ints, rows: Ints, reader_agents: Ints, epochs: Epochs
    ) -> bool:
        """Tensor cores read operands in steps, from flat chunks `starts` [g] on. If there may be
        something to say of it, nothing is done."""
        if self._direct is None:
            return not self._checks
        readers = self._readers.of_agent[reader_agents]
        return self._direct.read_operands(steps.chunks, starts, rows, readers, epochs, steps.tags)

    def _inspect_engine_read(self, chunks: Ints, rows: Ints, sel: Selection, pc: int) -> None:
        clocks = self._clocks
        groups, count = chunks.shape
        writers = self._state.last_writers(chunks.reshape(-1) * CHUNK, CHUNK)
        place = writers.agent + np.repeat(np.arange(groups) * clocks.num_agents, count)[:, None]
        unset = writers.epoch == 0
        late = writers.epoch > clocks.seen[rows].min(axis=1).reshape(-1).take(place)
        generic = (writers.agent < self._lane_agents) & ~late & ~unset
        if generic.any():
            fenced = clocks.seen_by_proxy[rows].max(axis=1).reshape(-1).take(place)
            generic &= writers.epoch > fenced
        for kind, bad in (
            ("uninitialised-shared", unset),
            ("race", late),
            ("missing-proxy-fence", generic),
        ):
            if bad.any():
                where = bad.any(axis=1).reshape(groups, count)
                lanes = np.isin(sel.warp_id, rows[where.any(axis=1)] % clocks.num_warps)
                first = int(rows[where.any(axis=1)][0, 0]) % clocks.num_warps // clocks.num_ctas
                detail, other = self._explain_engine_read(kind, writers, bad, first)
                self._report_engine(kind, detail, pc, sel, lanes, chunks[where], other)

    def _report_overwrite(
        self, thread: Thread, did: str, before: tuple[int, int], chunks: Ints
    ) -> None:
        """An engine writes over what an agent, with a tag, or another lane of the thread's warp,
        did."""
        agent, tag = before
        kind, clocks = "race", self._clocks
        detail = f"write over bytes {did} by {explain.who(clocks, agent, tag)}"
        detail += explain.missing(clocks, agent, thread.warp)
        if agent == thread.warp:
            kind = "intra-warp-race"
            detail = f"asynchronous write over bytes another lane of the warp has {did}{UNSYNCED}"
        site = thread.pc, thread.sel, thread.mask
        self._report_engine(kind, detail, *site, chunks, tag >> LANE_BITS)

    def _explain_engine_read(
        self, kind: str, writers: Writers, bad: Bools, warp: int
    ) -> tuple[str, int | None]:
        if kind == "uninitialised-shared":
            return "asynchronous read of shared memory that nothing was written to", None
        detail, other = self._explain("asynchronous read of bytes written by", writers, bad, warp)
        if kind == "missing-proxy-fence":
            detail = f"{detail.split(', with no ')[0]}, with no fence.proxy.async in between"
        return detail, other

    def _report_engine(
        self,
        kind: str,
        detail: str,
        pc: int,
        sel: Selection,
        lanes: Bools,
        chunks: Ints,
        other_pc: int | None,
    ) -> None:
        address = int(chunks[0]) * CHUNK % self._stride + SHARED_BASE
        self._findings.report(kind, detail, pc, sel, lanes, np.full(sel.count, address), other_pc)


def _by_thread(thread: Thread, agents: Ints | int, tags: Tags) -> Bools:
    """Which accesses the thread made itself, though together with other lanes of its warp."""
    lane = int(thread.sel.lane[thread.lane])
    made: Bools = (agents == np.int64(thread.warp)) & ((tags & LANE_MASK) == lane)
    return made
