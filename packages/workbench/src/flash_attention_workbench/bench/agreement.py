# SPDX-License-Identifier: Apache-2.0
"""Two measurements of one grid, point by point: do they agree, or what did a change do?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.grid_record import GridRecord
from flash_attention_workbench.bench.grid_run import OURS
from flash_attention_workbench.bench.grid_summary import point_of


@dataclass(frozen=True)
class Pair:
    """One contender at one point in both files."""

    contender: str
    point: Point
    before_ms: float
    after_ms: float

    @property
    def ratio(self) -> float:
        """How many times as fast the second file has it."""
        return self.before_ms / self.after_ms


@dataclass(frozen=True)
class Agreement:
    """The ratios of one contender over all points that both files have."""

    contender: str
    points: int
    mean: float  # geometric
    least: float
    greatest: float


def pair_up(before: GridRecord, after: GridRecord) -> list[Pair]:
    """What both files measured: the selected kernels, configs of the same name, the peers."""
    first, second = _times(before), _times(after)
    pairs = [
        Pair(contender, point, first[contender, point], ms)
        for (contender, point), ms in second.items()
        if (contender, point) in first
    ]
    if not pairs:
        raise UnsupportedError(
            f"the files have no point in common: grid {before.facts['grid']},"
            f" {before.facts['dtype']}, and {after.facts['grid']}, {after.facts['dtype']}"
        )
    return pairs


def agreements(pairs: Iterable[Pair]) -> list[Agreement]:
    """Mean and spread of every contender."""
    ratios: dict[str, list[float]] = {}
    for pair in pairs:
        ratios.setdefault(pair.contender, []).append(pair.ratio)
    return [
        Agreement(name, len(some), statistics.geometric_mean(some), min(some), max(some))
        for name, some in ratios.items()
    ]


def _times(record: GridRecord) -> dict[tuple[str, Point], float]:
    times: dict[tuple[str, Point], float] = {}
    for row in record.rows:
        point = point_of(row)
        if row.ok:
            times[OURS if row.selected else row.config, point] = row.ms
        times |= {(name, point): ms for name, ms in row.peers.items()}
    return times
