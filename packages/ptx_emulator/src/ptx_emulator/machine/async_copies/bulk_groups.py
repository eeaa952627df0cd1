# SPDX-License-Identifier: Apache-2.0
"""Bulk groups: the copies from shared to global memory that a thread has started and not ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Ints, Thread
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.shared import SharedMemory

Array = NDArray[Any]


@dataclass
class _Store:
    """A copy in flight. `data` is what it has read from shared memory, or None."""

    thread: Thread
    chunks: Ints
    put: Callable[[Array], None]
    epoch: int
    data: Array | None = None


@dataclass
class _Queue:
    """The copies of one thread: those of the open group, and the committed groups in order."""

    open: list[_Store] = field(default_factory=list)
    groups: list[list[_Store]] = field(default_factory=list)


class BulkGroups:
    """The groups of all threads. Data moves as late as the program's waits allow."""

    def __init__(self, launch: Launch, shared: SharedMemory) -> None:
        self._launch = launch
        self._shared = shared
        self._queues: dict[int, _Queue] = {}
        self._epochs = np.zeros(launch.num_warps, np.int32)

    def start(self, thread: Thread, chunks: Ints, put: Callable[[Array], None]) -> None:
        """Add a copy of flat chunks to the open group; `put` takes their bytes."""
        launch = self._launch
        self._epochs[thread.warp_id] += 1
        epoch = int(self._epochs[thread.warp_id])
        agent = launch.clocks.bulk_agent(thread.warp)
        self._shared.bulk_read(thread, chunks, agent, epoch)
        number = thread.sel.number(thread.lane)
        queue = self._queues.setdefault(number, _Queue())
        queue.open.append(_Store(thread, chunks, put, epoch))

    def commit(self, sel: Selection) -> None:
        """cp.async.bulk.commit_group: the open group of each thread is complete."""
        for queue in self._queues_of(sel):
            queue.groups.append(queue.open)
            queue.open = []

    def wait(self, sel: Selection, pending: int, read: bool) -> None:
        """cp.async.bulk.wait_group: all but the newest `pending` groups of each thread are over.

        With `read`, their reads of shared memory are; their writes may still be on the way.
        """
        clocks = self._launch.clocks
        for queue in self._queues_of(sel):
            over = max(0, len(queue.groups) - pending)
            for store in (store for group in queue.groups[:over] for store in group):
                data = self._read_shared(store)
                thread = store.thread
                agent = clocks.bulk_agent(thread.warp)
                clocks.learn(thread.warp_id, agent, store.epoch, thread.alone)
                if not read:
                    store.put(data)
            if not read:
                del queue.groups[:over]

    def report_unfinished(self) -> None:
        """At the end of the kernel, complete what is in flight and report missing waits."""
        findings = self._launch.findings
        for queue in self._queues.values():
            for store in (store for group in (*queue.groups, queue.open) for store in group):
                if store.data is None:
                    detail = "the thread exits while its bulk store reads shared memory"
                    findings.report_thread("bulk-store-unwaited", detail, store.thread)
                store.put(self._read_shared(store))
        self._queues = {}

    def _read_shared(self, store: _Store) -> Array:
        if store.data is None:
            store.data = self._shared.chunks[store.chunks].view(np.uint8)
        return store.data

    def _queues_of(self, sel: Selection) -> list[_Queue]:
        numbers = self._launch.lanes.numbers[sel.index]
        if len(self._queues) < len(numbers):
            chosen = set(numbers.tolist())
            return [queue for number, queue in self._queues.items() if number in chosen]
        return [self._queues[n] for n in numbers.tolist() if n in self._queues]
