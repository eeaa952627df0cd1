# SPDX-License-Identifier: Apache-2.0
"""setmaxnreg: warps give registers to the pool of their CTA, or wait until they can take some.

A CTA has what its warps have at launch, and no more. What a warp that has ended held stays with it.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np

from ptx_emulator.machine.lanes import WARP_SIZE, Bools, Ints, Selection
from ptx_emulator.machine.launch.launch import Launch

KIND = "setmaxnreg"
GROUP_WARPS = 4

Released = list[tuple[int, Ints]]  # (block that ends in setmaxnreg, lane numbers)


class _Waiter(NamedTuple):
    """Lanes that wait for registers: the block that ends there, and how many they ask for."""

    block: int
    lanes: Selection
    wanted: int


class RegisterPool:
    """The registers that every warp holds, and those that are free in every CTA.

    Both are counted a thread of a warp, so 8 of them are 256 of the hardware.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._at_launch = launch.program.registers_at_launch
        self._waiting: list[_Waiter] = []
        if self._at_launch is None:
            return
        clusters = launch.clusters
        warp, cluster = np.divmod(np.arange(launch.num_warps), launch.num_ctas)
        self._cta: Ints = cluster * clusters.size + warp // clusters.warps_in_cta
        self._warp: Ints = clusters.warp(warp)
        groups = -(-clusters.warps_in_cta // GROUP_WARPS)
        self._group: Ints = self._cta * groups + self._warp // GROUP_WARPS
        self._held: Ints = np.full(launch.num_warps, self._at_launch)
        self._free: Ints = np.zeros(launch.num_ctas * clusters.size, np.int64)
        self._executed: dict[int, Ints] = {}  # by instruction, how often by each warp
        self._epochs: list[Ints] = []  # of each warp, at its first setmaxnreg, its second, ...

    @property
    def anyone_waits(self) -> bool:
        return bool(self._waiting)

    def change(self, s: Selection, grows: bool, count: int, block: int) -> Released:
        """Lanes set the registers of a thread to `count` at the end of `block`. Returns the lanes
        that can go on, from the blocks at whose ends they are."""
        released = [(block, self._launch.lanes.numbers[s.index])]
        if self._at_launch is None:
            return released
        if self._launch.checks:
            self._check(s, grows, count, self._place(block))
        if grows:
            self._waiting.append(_Waiter(block, s, count))
            return self._serve()
        held = self._held[s.warps]
        np.add.at(self._free, self._cta[s.warps], np.maximum(held - count, 0))
        self._held[s.warps] = np.minimum(held, count)
        return released + self._serve()

    def report_incomplete(self) -> None:
        """At the end of the kernel, find setmaxnreg that some warps of a warpgroup skipped."""
        for pc, times in self._executed.items() if self._at_launch is not None else ():
            most = np.zeros(int(self._group.max()) + 1, np.int64)
            np.maximum.at(most, self._group, times)
            skipped = times < most[self._group]
            if skipped.any():
                others = np.isin(self._group, self._group[skipped]) & ~skipped
                group = self._group == self._group[others.argmax()]
                detail = f"{int((others & group).sum())} of {int(group.sum())} warps of a"
                detail += " warpgroup execute it; all of them must"
                lanes = self._launch.lanes
                sel = lanes.gather(lanes.numbers[others[lanes.warp_id]])
                self._report(detail, pc, sel, np.ones(sel.count, bool))

    def describe(self) -> list[str]:
        """What the first CTA has where somebody waits for registers, and who holds it."""
        if not self._waiting:
            return []
        waiters = {warp: each for each in self._waiting for warp in each.lanes.warps.tolist()}
        ctas = np.unique(self._cta[list(waiters)]).tolist()
        (warps,) = np.nonzero(self._cta == ctas[0])
        clusters, num_ctas = self._launch.clusters, self._launch.num_ctas
        number = clusters.cta(int(warps[0]) % num_ctas, int(warps[0]) // num_ctas)
        total, free = int(self._held[warps].sum() + self._free[ctas[0]]), int(self._free[ctas[0]])
        lines = [
            f"CTA {number} has {WARP_SIZE * total} registers, {self._at_launch} a thread at launch,"
            f" and {WARP_SIZE * free} of them are free:"
        ]
        states = [self._state(warp, waiters.get(warp)) for warp in warps.tolist()]
        for state, alike in groupby(range(len(warps)), key=states.__getitem__):
            first, *rest = alike
            who = f"warps {first} to {rest[-1]} hold" if rest else f"warp {first} holds"
            lines.append(f"  {who} {state}")
        if len(ctas) > 1:
            lines.append(f"CTAs that wait for registers: {len(ctas)}")
        return lines

    def _state(self, warp: int, waiter: _Waiter | None) -> str:
        held = f"{self._held[warp]} a thread"
        if waiter is None or self._held[warp] >= waiter.wanted:
            return held
        instruction = self._launch.program.kernel.instructions[self._place(waiter.block)]
        source = f" ({instruction.source})" if instruction.source else ""
        place = f"at PTX line {instruction.ptx_line}{source}"
        return f"{held}, waiting for {waiter.wanted} by setmaxnreg.inc {place}"

    def _serve(self) -> Released:
        """Give registers to those who wait, as far as there are some, in the order they came. A
        warpgroup goes on when all its warps have theirs."""
        released: Released = []
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            lanes = waiter.lanes
            served = self._take(lanes.warps, waiter.wanted)
            groups = self._group[lanes.warps]
            served &= ~np.isin(groups, groups[~served])
            numbers = self._launch.lanes.numbers[lanes.index]
            if served.all():
                released.append((waiter.block, numbers))
                continue
            goes_on = np.isin(lanes.warp_id, lanes.warps[served])
            if served.any():
                released.append((waiter.block, numbers[goes_on]))
            rest = self._launch.lanes.part(lanes, ~goes_on)
            self._waiting.append(waiter._replace(lanes=rest))
        return released

    def _take(self, warps: Ints, count: int) -> Bools:
        """Take what warps ask for, and say which of them got it."""
        needed = np.maximum(count - self._held[warps], 0)
        ctas = self._cta[warps]
        asked = np.bincount(ctas, needed, len(self._free)).astype(np.int64)
        served: Bools = np.ones(len(warps), bool)
        if (asked > self._free).any():
            left = self._free.copy()
            for place, (cta, more) in enumerate(zip(ctas, needed, strict=True)):
                served[place] = more <= left[cta]
                left[cta] -= more * served[place]
            asked = self._free - left
        self._free -= asked
        self._held[warps[served]] += needed[served]
        return served

    def _check(self, s: Selection, grows: bool, count: int, pc: int) -> None:
        held = self._held[s.warp_id]
        wrong = held > count if grows else held < count
        if wrong.any():
            action, side = ("inc", "below") if grows else ("dec", "above")
            detail = f"setmaxnreg.{action} to {count} registers a thread, {side} the"
            self._report(f"{detail} {held[wrong.argmax()]} that it has", pc, s, wrong)
        if not s.whole_warps:
            gone = self._launch.gone
            running = np.bincount(self._launch.lanes.warp_id[~gone], minlength=len(self._held))
            here = np.bincount(s.warp_id, minlength=len(self._held))
            apart = (here < running)[s.warp_id]
            self._report("some lanes of the warp execute it without the others", pc, s, apart)
        self._check_order(s, pc)
        executed = self._executed.setdefault(pc, np.zeros_like(self._held))
        executed[s.warps] += 1

    def _check_order(self, s: Selection, pc: int) -> None:
        """Find warps that do not know of the others' setmaxnreg before."""
        clocks = self._launch.clocks
        every = sum(self._executed.values(), np.zeros_like(self._held))
        times = every[s.warps]
        while len(self._epochs) <= times.max():
            self._epochs.append(np.zeros_like(self._held))
        for warp in s.warps[times > 0].tolist():
            before = self._epochs[every[warp] - 1]
            (group,) = np.nonzero(self._group == self._group[warp])
            known = clocks.seen[warp, group // clocks.num_ctas]
            if ((before[group] == 0) | (before[group] > known)).any():
                detail = "warps of the warpgroup have not met since the setmaxnreg before"
                self._report(detail, pc, s, s.warp_id == warp)
        for time in np.unique(times).tolist():
            warps = s.warps[times == time]
            self._epochs[time][warps] = clocks.epochs(warps)

    def _report(self, detail: str, pc: int, s: Selection, bad: Bools) -> None:
        self._launch.findings.report(KIND, detail, pc, s, bad)

    def _place(self, block: int) -> int:
        """The number of the instruction that ends a block."""
        ended = self._launch.program.blocks[block]
        return ended.last
