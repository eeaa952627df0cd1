# SPDX-License-Identifier: Apache-2.0
"""__syncwarp of lanes that reach it at several places: who waits, who may go on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.barriers.paths import Paths, Place
from ptx_emulator.machine.lanes import WARP_SIZE, Ints, Selection
from ptx_emulator.machine.launch.launch import Launch

Words = NDArray[np.uint32]


class _Waiter(NamedTuple):
    """A lane that waits for all lanes of its mask, at the end of a block."""

    number: int
    lane: int
    members: int
    place: Place


class WarpBarriers:
    """The lanes that wait, by warp."""

    def __init__(self, launch: Launch, paths: Paths) -> None:
        self._launch = launch
        self._paths = paths
        self._waiting: dict[int, list[_Waiter]] = {}
        self._released: list[tuple[int, Ints]] = []

    @property
    def any_open(self) -> bool:
        return bool(self._waiting)

    def wait(self, s: Selection, members: Words, place: Place) -> None:
        """bar.warp.sync at the end of a block."""
        bad = (members.astype(np.int64) >> s.lane & 1) == 0
        detail = "the lane is not in the membermask that it gives"
        self._launch.findings.report("membermask", detail, self._pc(place), s, bad)
        numbers = self._launch.lanes.numbers[s.index]
        fields = (numbers, s.lane, members, s.warp_id)
        for number, lane, mask, warp in zip(*(field.tolist() for field in fields), strict=True):
            waiter = _Waiter(number, lane, mask | 1 << lane, place)
            self._waiting.setdefault(warp, []).append(waiter)
        for warp in s.warps.tolist():
            self._complete(warp)

    def exited(self, s: Selection) -> None:
        """Lanes returned: the others no longer wait for them."""
        if self._waiting:
            for warp in s.warps.tolist():
                self._complete(warp)

    def take_released(self) -> list[tuple[int, Ints]]:
        if not self._released:
            return []
        released, self._released = self._released, []
        return released

    def describe(self) -> list[str]:
        """Where lanes wait for others of their warp."""
        clusters, num_ctas = self._launch.clusters, self._launch.num_ctas
        lines = []
        for warp_id, waiters in self._waiting.items():
            warp, cta = divmod(warp_id, num_ctas)
            who = f"CTA {clusters.cta(cta, warp)} warp {clusters.warp(warp)}"
            lanes = sum(1 << waiter.lane for waiter in waiters)
            members = waiters[0].members
            lines.append(f"{who}: the lanes {lanes:#x} wait at __syncwarp for {members:#x}")
        return lines

    def _complete(self, warp: int) -> None:
        """Let those lanes of a warp go on of which all members wait too, or have ended."""
        waiters = self._waiting.get(warp, [])
        if not waiters:
            return
        first = warp * WARP_SIZE
        gone = self._launch.gone[first : first + WARP_SIZE] @ (1 << np.arange(WARP_SIZE))
        for members in {waiter.members for waiter in waiters}:
            met = [waiter for waiter in waiters if waiter.members == members]
            if members & ~(sum(1 << waiter.lane for waiter in met) | int(gone)):
                continue
            waiters = [waiter for waiter in waiters if waiter.members != members]
            numbers = np.array([waiter.number for waiter in met])
            together = self._launch.lanes.gather(numbers)
            self._check_absent(warp, members, met[0].place, together)
            self._launch.clocks.sync_warp(together)
            blocks = np.array([waiter.place.block for waiter in met])
            self._released += [(int(at), numbers[blocks == at]) for at in np.unique(blocks)]
        self._waiting[warp] = waiters
        if not waiters:
            del self._waiting[warp]

    def _check_absent(self, warp: int, members: int, place: Place, s: Selection) -> None:
        """Look for members that have ended, but not before they came to what lies behind."""
        absent = sum(1 << lane for lane, _ in self._paths.past(warp, place)) & members
        if absent:
            detail = f"the membermask {members:#x} names lanes that do not take part: {absent:#x}"
            everyone = np.ones(s.count, bool)
            self._launch.findings.report("membermask", detail, self._pc(place), s, everyone)

    def _pc(self, place: Place) -> int:
        block = self._launch.program.blocks[place.block]
        return block.last
