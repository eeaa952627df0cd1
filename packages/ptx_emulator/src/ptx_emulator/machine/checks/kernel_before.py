# SPDX-License-Identifier: Apache-2.0
"""A kernel that starts before the one before it has ended, and waits for it (griddepcontrol)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Bools, Ints, Mask
from ptx_emulator.machine.lanes import GLOBAL_BASE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.allocation import Allocation
from ptx_emulator.machine.storage.global_memory import GlobalMemory

NEVER = np.iinfo(np.int32).max


class KernelBefore:
    """Which threads know that the kernel before has ended. Emulated kernels run one after the
    other, so a thread that does not know it is found by what it accesses."""

    def __init__(self, launch: Launch, memory: GlobalMemory, starts_early: bool) -> None:
        self._clocks = launch.clocks
        self._findings = launch.findings
        self._first, self._last = memory.last_launch, memory.writers  # of its writers
        self.watched = starts_early and launch.checks
        ctas, warps = launch.num_ctas, launch.warps_per_cta
        shape = (ctas, warps) if self.watched else (0, 0)
        self._known_by_all = False
        self._waited: NDArray[np.int32] = np.full(shape, NEVER, np.int32)  # since an epoch

    def wait(self, sel: Selection, mask: Mask) -> None:
        """griddepcontrol.wait: these warps, and who learns of them, know that it has ended."""
        if not self.watched:
            return
        self._clocks.tick(sel)
        lanes = slice(None) if mask is None else mask
        warp_ids = sel.warp_id[lanes]
        place = sel.cta[lanes], sel.warp[lanes]
        self._waited[place] = np.minimum(self._waited[place], self._clocks.epochs(warp_ids))

    def check(self, allocation: Allocation, lanes: Ints, access: Access) -> None:
        """Report accesses to what the kernel before wrote, by threads that have not waited."""
        if not self.watched or allocation.newest <= self._first or self._all_know():
            return
        number = allocation.writes(access.where[lanes], access.nbytes)[0].number
        written = ((number > self._first) & (number <= self._last)).any(axis=1)
        early = np.zeros(access.sel.count, bool)
        early[lanes[written]] = True
        early &= ~self._knows(access.sel)
        if early.any():
            detail = f"{access.what} of bytes that the kernel before wrote, with no"
            detail += " griddepcontrol.wait before it"
            address = access.where + GLOBAL_BASE
            self._findings.report("early-access", detail, access.pc, access.sel, early, address)

    def _all_know(self) -> bool:
        """Whether every warp knows it, and every lane that acts alone; they never forget."""
        if not self._known_by_all:
            clocks = self._clocks
            seen = clocks.seen[:, : clocks.warps_per_cta]
            seen = seen.reshape(-1, clocks.num_ctas, clocks.warps_per_cta)  # [warps, CTAs, agents]
            self._known_by_all = bool((seen >= self._waited).any(axis=2).all())
        return self._known_by_all

    def _knows(self, sel: Selection) -> Bools:
        clocks = self._clocks
        rows = np.where(sel.alone, sel.warp_id + clocks.num_warps, sel.warp_id)
        seen = clocks.seen[rows, : clocks.warps_per_cta]
        known: Bools = np.any(seen >= self._waited[sel.cta], axis=1)
        return known
