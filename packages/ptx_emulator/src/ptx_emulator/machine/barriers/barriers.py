# SPDX-License-Identifier: Apache-2.0
"""The sixteen barriers of a CTA: who arrived, who waits, who may go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import alike
from ptx_emulator.machine.barriers.cluster_barriers import ClusterBarriers
from ptx_emulator.machine.barriers.divergence import check_warps
from ptx_emulator.machine.barriers.paths import Paths, Place
from ptx_emulator.machine.lanes import Bools, Ints, Selection
from ptx_emulator.machine.launch.clocks import Released
from ptx_emulator.machine.launch.launch import Launch

Words = NDArray[np.uint32]
NUMBERS = 16  # of barriers in a CTA
Votes = tuple[int, int]  # how many said yes, how many voted
Waiting = list[tuple[int, Ints]]  # (block they wait at the end of, lane numbers)


@dataclass
class _Barrier:
    threads: int  # expected; 0: all of the CTA that have not returned
    arrived: int = 0
    waiting: Waiting = field(default_factory=list)
    arrived_at: list[Place] = field(default_factory=list)  # of those who wait
    divided: bool = False  # whether some of them came without the others of their warp
    warps: list[Ints] = field(default_factory=list)  # of those who wait
    passed: list[Released] = field(default_factory=list)  # clocks of warps that only arrived


class _Part(NamedTuple):
    """Lanes of one CTA that name one barrier: their places in a selection, numbers and warps."""

    cta: int
    number: int
    places: Ints
    lanes: Ints
    warps: Ints


class NamedBarriers:
    """Barrier state of every CTA."""

    def __init__(self, launch: Launch, paths: Paths) -> None:
        self._launch = launch
        self._paths = paths
        self._open: dict[tuple[int, int], _Barrier] = {}
        self._ranks = launch.clusters.size
        self._exited = np.zeros(launch.num_ctas * self._ranks, np.int64)
        self.cluster = ClusterBarriers(launch)
        self._released: Waiting = []
        self._votes: dict[tuple[int, int], Votes] = {}  # of threads that wait
        self._voted: dict[tuple[int, int], Votes] = {}  # at barriers that are complete

    @property
    def any_open(self) -> bool:
        return bool(self._open) or self.cluster.any_open

    def arrive(self, s: Selection, numbers: Words, threads: Words) -> None:
        """bar.arrive: count the lanes and let them go on."""
        _check_numbers(numbers)
        self._enter(s, numbers, threads, waiting_at=None)

    def wait(self, s: Selection, numbers: Words, threads: Words, place: Place) -> None:
        """bar.sync at the end of a block."""
        launch = self._launch
        _check_numbers(numbers)
        launch.counters.barrier_wait(s.num_warps)
        undisturbed = not self._open and not self._exited.any()
        if (
            s.is_all
            and self._ranks == 1
            and undisturbed
            and _of_whole_ctas(numbers, threads, launch.block)
        ):
            launch.clocks.join_all()
            self._voted |= self._votes
            self._votes = {}
            self._released.append((place.block, launch.lanes.numbers))
            return
        self._enter(s, numbers, threads, waiting_at=place)

    def vote(self, s: Selection, numbers: Words, values: Bools) -> None:
        """bar.red: threads that are about to wait at a barrier say yes or no."""
        for cta, number, mask in _by_barrier(self._ctas(s), numbers):
            yes, total = self._votes.get((cta, number), (0, 0))
            count = int(np.count_nonzero(values[mask]))
            self._votes[cta, number] = yes + count, total + int(np.count_nonzero(mask))

    def voted(self, s: Selection, numbers: Words, mode: str) -> NDArray[Any]:
        """The outcome behind the barrier: how many said yes, whether one did, whether all did."""
        result: NDArray[Any] = np.zeros(s.count, np.uint32 if mode == "popc" else np.bool_)
        for cta, number, mask in _by_barrier(self._ctas(s), numbers):
            yes, total = self._voted[cta, number]
            result[mask] = {"popc": yes, "or": yes > 0, "and": yes == total}[mode]
        return result

    def exited(self, s: Selection) -> None:
        """Lanes returned: barriers of the whole CTA no longer wait for them."""
        self._exited += np.bincount(self._ctas(s), minlength=len(self._exited))
        self.cluster.exited(s)
        self._launch.gone[s.index] = True
        for key in list(self._open):
            self._complete(key)

    def take_released(self) -> Waiting:
        if not self._released and not self.cluster.any_released:
            return []
        released, self._released = self._released, []
        return released + self.cluster.take_released()

    def describe(self) -> list[str]:
        """Every barrier that somebody waits at, and where its warps wait."""
        lines = []
        for (which, number), barrier in self._open.items():
            needed = self._needed(which, barrier)
            cluster, rank = divmod(which, self._ranks)
            clusters = self._launch.clusters
            cta = clusters.cta(cluster, rank * clusters.warps_in_cta)
            lines.append(f"CTA {cta} barrier {number}: {barrier.arrived} of {needed} threads")
            for block, numbers in barrier.waiting:
                instruction = self._launch.program.blocks[block].instructions[-1]
                warps = np.unique(clusters.warp(self._launch.lanes.warp[numbers])).tolist()
                listed = ", ".join(map(str, warps))
                lines.append(f"  at {instruction.place}: warps {listed}")
        return lines + self.cluster.describe()

    def _ctas(self, s: Selection) -> Ints:
        """The CTAs that lanes belong to; those of one cluster have numbers behind one another."""
        if self._ranks == 1:
            return s.cta
        return s.cta * self._ranks + self._launch.lanes.rank[s.index]

    def _enter(
        self, s: Selection, numbers: Words, threads: Words, *, waiting_at: Place | None
    ) -> None:
        for part in self._parts(s, numbers):
            cta, number, expected = part.cta, part.number, int(threads[part.places[0]])
            barrier = self._open.setdefault((cta, number), _Barrier(expected))
            if barrier.threads != expected or (threads[part.places] != expected).any():
                raise EmulatorError(
                    f"barrier {number} of CTA {cta} is used with {barrier.threads} and"
                    f" {threads[part.places].max()} threads at once"
                )
            barrier.arrived += len(part.lanes)
            if waiting_at is not None:
                barrier.waiting.append((waiting_at.block, part.lanes))
                barrier.arrived_at.append(waiting_at)
                barrier.divided |= not s.whole_warps
                barrier.warps.append(part.warps)
            else:
                clocks = self._launch.clocks
                barrier.passed += [clocks.release(warp) for warp in part.warps.tolist()]
            self._complete((cta, number))

    def _parts(self, s: Selection, numbers: Words) -> list[_Part]:
        """The lanes of a selection by CTA and by the barrier that they name."""
        first, at_one = int(numbers[0]), alike(numbers)
        known = s.memo.get(("barrier", first)) if at_one else None
        if isinstance(known, list):
            return known
        lanes = self._launch.lanes.numbers[s.index]
        parts = [
            _Part(cta, number, places, lanes[places], np.unique(s.warp_id[places]))
            for cta, number, mask in _by_barrier(self._ctas(s), numbers)
            for places in (np.flatnonzero(mask),)
        ]
        if at_one:
            s.memo["barrier", first] = parts
        return parts

    def _needed(self, cta: int, barrier: _Barrier) -> int:
        return barrier.threads or self._launch.block - int(self._exited[cta])

    def _complete(self, key: tuple[int, int]) -> None:
        barrier = self._open[key]
        needed = self._needed(key[0], barrier)
        if barrier.arrived > needed:
            raise EmulatorError(
                f"barrier {key[1]} of CTA {key[0]}: {barrier.arrived} threads arrived,"
                f" {needed} were expected"
            )
        if barrier.arrived < needed:
            return
        del self._open[key]
        if key in self._votes:
            self._voted[key] = self._votes.pop(key)
        self._released += barrier.waiting
        if barrier.divided and self._launch.checks:
            lanes = (numbers for _, numbers in barrier.waiting)
            arrived = list(zip(barrier.arrived_at, lanes, strict=True))
            check_warps(self._launch, self._paths, arrived)
        if barrier.waiting:
            several = len(barrier.warps) > 1
            warps = np.unique(np.concatenate(barrier.warps)) if several else barrier.warps[0]
            self._launch.clocks.join(warps, barrier.passed)


def _by_barrier(ctas: Ints, numbers: Words) -> Iterator[tuple[int, int, Bools]]:
    """CTA, number and lanes of every barrier that lanes of CTAs name."""
    keys = ctas * NUMBERS + numbers
    for key in np.unique(keys):
        yield *divmod(int(key), NUMBERS), keys == key


def _check_numbers(numbers: Words) -> None:
    highest = int(numbers.max())
    if highest >= NUMBERS:
        raise EmulatorError(f"barrier {highest}: a CTA has the barriers 0 to {NUMBERS - 1}")


def _of_whole_ctas(numbers: Words, threads: Words, block: int) -> bool:
    """Whether all lanes are at one barrier, and it is for all of them."""
    return alike(numbers) and alike(threads) and int(threads[0]) in (0, block)
