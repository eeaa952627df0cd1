# SPDX-License-Identifier: Apache-2.0
"""cp.async: copies from global to shared memory that land as late as their waits allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Access, Mask
from ptx_emulator.machine.lanes import WARP_SIZE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.global_access import GlobalAccess
from ptx_emulator.machine.memory.shared import SharedMemory

SIZES = (4, 8, 16)

Ints = NDArray[np.int64]


@dataclass
class _Copy:
    """One instruction's copies that have not landed."""

    lanes: Ints  # lane numbers in the launch
    groups: Ints  # the group of its lane every copy belongs to, counted from 1
    offsets: Ints
    nbytes: int
    data: NDArray[Any]
    pc: int

    def part(self, mask: NDArray[np.bool_]) -> _Copy:
        return _Copy(
            self.lanes[mask],
            self.groups[mask],
            self.offsets[mask],
            self.nbytes,
            self.data[mask],
            self.pc,
        )


class AsyncCopies:
    """The copy engines of all warps; shared memory is poisoned until a copy lands."""

    def __init__(self, launch: Launch, shared: SharedMemory, global_access: GlobalAccess) -> None:
        self._launch = launch
        self._shared = shared
        self._global_access = global_access
        self._committed: Ints = np.zeros(launch.num_lanes, np.int64)
        self._in_flight: list[_Copy] = []

    def issue(
        self,
        sel: Selection,
        dst: NDArray[Any],
        src: NDArray[Any],
        nbytes: int,
        source_bytes: int | NDArray[Any] | None,
        mask: Mask,
        pc: int,
    ) -> None:
        """Start copies of `nbytes`; what lies beyond `source_bytes` of them is zero."""
        if nbytes not in SIZES:
            raise EmulatorError(f"cp.async copies 4, 8 or 16 bytes, not {nbytes}")
        launch = self._launch
        data = self._fetch(Access(sel, src, nbytes, mask, pc, "cp.async"), source_bytes)
        groups = self._committed[sel.index] + 1
        target = self._shared.write(
            Access(sel, dst, nbytes, mask, pc, "cp.async"),
            agent=launch.clocks.copy_agent(sel.warp),
            epoch=groups,
        )
        copy = _Copy(launch.lanes.numbers[sel.index], groups, target.where, nbytes, data, pc)
        if target.mask is not None:
            copy = copy.part(target.mask)
        if copy.lanes.size:
            self._in_flight.append(copy)

    def commit(self, sel: Selection) -> None:
        """cp.async.commit_group: what was issued since the last one is a group."""
        self._committed[sel.index] += 1

    def wait(self, sel: Selection, pending: int) -> None:
        """cp.async.wait_group: all but the newest `pending` groups of these lanes land."""
        done: Ints = np.zeros(self._launch.num_lanes, np.int64)
        done[sel.index] = self._committed[sel.index] - pending
        waiting = []
        for copy in self._in_flight:
            lands = copy.groups <= done[copy.lanes]
            if lands.all():
                self._land(copy)
            elif lands.any():
                self._land(copy.part(lands))
                waiting.append(copy.part(~lands))
            else:
                waiting.append(copy)
        self._in_flight = waiting
        clocks = self._launch.clocks
        if sel.whole_warps:
            by_warp = done[sel.index].reshape(-1, WARP_SIZE).min(axis=1)
        else:
            by_warp = np.full(len(sel.warps), np.iinfo(np.int32).max)
            np.minimum.at(by_warp, np.searchsorted(sel.warps, sel.warp_id), done[sel.index])
        agents = clocks.copy_agent(sel.warps // clocks.num_ctas)
        clocks.learn_all(sel.warps, agents, by_warp)

    def unfinished(self) -> int:
        """How many copies have not landed."""
        return sum(len(copy.lanes) for copy in self._in_flight)

    def report_unfinished(self) -> None:
        """At the end of a kernel: find the copies nobody waited for."""
        for copy in self._in_flight:
            sel = self._launch.lanes.select(copy.lanes)
            detail = "the kernel ends with copies in flight that no cp.async.wait_group waits for"
            everyone = np.ones(sel.count, bool)
            address = copy.offsets - sel.shared_base
            self._launch.findings.report(
                "cp-async-unwaited", detail, copy.pc, sel, everyone, address
            )

    def _land(self, copy: _Copy) -> None:
        self._shared.storage.views[copy.nbytes][copy.offsets // copy.nbytes] = copy.data

    def _fetch(self, source: Access, source_bytes: int | NDArray[Any] | None) -> NDArray[Any]:
        """The bytes to copy, zero from `source_bytes` on; the bytes beyond are not touched."""
        memory = self._global_access
        storage = memory.storage
        nbytes, lanes = source.nbytes, source.sel.count
        if source_bytes is None or (isinstance(source_bytes, int) and source_bytes == nbytes):
            fetched = memory.fetch(source)
            if fetched is not None:
                return fetched
            return storage.gather_wide(memory.read(source).where, nbytes)
        given = np.minimum(np.broadcast_to(np.asarray(source_bytes, np.int64), lanes), nbytes)
        active = np.ones(lanes, bool) if source.mask is None else source.mask
        whole = active & (given == nbytes)
        offsets = memory.read(source._replace(mask=whole)).where
        data = np.where(whole, storage.gather_wide(offsets, nbytes), 0)
        data = np.ascontiguousarray(data, storage.views[nbytes].dtype)
        for count in np.unique(given[active & (given > 0) & ~whole]).tolist():
            part = source._replace(nbytes=count, mask=active & (given == count), align=nbytes)
            read = memory.read(part)
            filled = np.zeros((lanes, nbytes), np.uint8)
            filled[:, :count] = storage.bytes[read.where[:, None] + np.arange(count)]
            data[read.mask] = filled.view(data.dtype)[read.mask, 0]
        return data
