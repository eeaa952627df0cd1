# SPDX-License-Identifier: Apache-2.0
"""cp.async: copies from global to shared memory that land as late as their waits allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.errors import EmulatorError
from flash_attention.emulator.machine.lanes import WARP_SIZE

if TYPE_CHECKING:
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.machine.machine import Machine

SIZES = (4, 8, 16)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_] | None


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

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._committed: Ints = np.zeros(machine.num_lanes, np.int64)
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
        machine = self._machine
        offsets, allowed = machine.shared.resolve(sel, dst, nbytes, mask, pc, "cp.async")
        data = self._fetch(sel, src, nbytes, source_bytes, mask, pc)
        groups = self._committed[sel.index] + 1
        if machine.checks:
            machine.counters.shared_access(pc, sel, dst, nbytes, mask)
            agents = machine.clocks.copy_agent(sel.warp)
            machine.shared.check_write(sel, offsets, nbytes, pc, allowed, agents, groups)
        lanes = machine.lanes.numbers[sel.index]
        copy = _Copy(lanes, groups, offsets, nbytes, data, pc)
        if allowed is not None:
            copy = copy.part(allowed)
        if copy.lanes.size:
            machine.shared.storage.poison(copy.offsets, nbytes)
            self._in_flight.append(copy)

    def commit(self, sel: Selection) -> None:
        """cp.async.commit_group: what was issued since the last one is a group."""
        self._committed[sel.index] += 1

    def wait(self, sel: Selection, pending: int) -> None:
        """cp.async.wait_group: all but the newest `pending` groups of these lanes land."""
        done: Ints = np.zeros(self._machine.num_lanes, np.int64)
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
        clocks = self._machine.clocks
        if sel.whole_warps:
            by_warp = done[sel.index].reshape(-1, WARP_SIZE).min(axis=1)
        else:
            by_warp = np.full(len(sel.warps), np.iinfo(np.int32).max)
            np.minimum.at(by_warp, np.searchsorted(sel.warps, sel.warp_id), done[sel.index])
        agents = clocks.copy_agent(sel.warps // clocks.num_ctas)
        clocks.seen[sel.warps, agents] = np.maximum(clocks.seen[sel.warps, agents], by_warp)

    def unfinished(self) -> int:
        """How many copies have not landed."""
        return sum(len(copy.lanes) for copy in self._in_flight)

    def report_unfinished(self) -> None:
        """At the end of a kernel: find the copies nobody waited for."""
        for copy in self._in_flight:
            sel = self._machine.lanes.select(copy.lanes)
            detail = "the kernel ends with copies in flight that no cp.async.wait_group waits for"
            everyone = np.ones(sel.count, bool)
            address = copy.offsets - sel.shared_base
            self._machine.findings.report(
                "cp-async-unwaited", detail, copy.pc, sel, everyone, address
            )

    def _land(self, copy: _Copy) -> None:
        self._machine.shared.storage.views[copy.nbytes][copy.offsets // copy.nbytes] = copy.data

    def _fetch(
        self,
        sel: Selection,
        src: NDArray[Any],
        nbytes: int,
        source_bytes: int | NDArray[Any] | None,
        mask: Mask,
        pc: int,
    ) -> NDArray[Any]:
        """The bytes at `src`, zero from `source_bytes` on; the bytes beyond are not touched."""
        access = self._machine.global_access
        storage = access.memory.storage
        if source_bytes is None or (isinstance(source_bytes, int) and source_bytes == nbytes):
            offsets, _ = access.read_offsets(sel, src, nbytes, mask, pc, "cp.async")
            return storage.gather_wide(offsets, nbytes)
        given = np.minimum(np.broadcast_to(np.asarray(source_bytes, np.int64), sel.count), nbytes)
        active = np.ones(sel.count, bool) if mask is None else mask
        whole = active & (given == nbytes)
        offsets, _ = access.read_offsets(sel, src, nbytes, whole, pc, "cp.async")
        data = np.where(whole, storage.gather_wide(offsets, nbytes), 0)
        data = np.ascontiguousarray(data, storage.views[nbytes].dtype)
        for count in np.unique(given[active & (given > 0) & ~whole]).tolist():
            part = active & (given == count)
            offsets, allowed = access.read_offsets(sel, src, count, part, pc, "cp.async", nbytes)
            filled = np.zeros((sel.count, nbytes), np.uint8)
            filled[:, :count] = storage.bytes[offsets[:, None] + np.arange(count)]
            data[allowed] = filled.view(data.dtype)[allowed, 0]
        return data
