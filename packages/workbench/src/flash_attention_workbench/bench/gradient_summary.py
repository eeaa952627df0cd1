# SPDX-License-Identifier: Apache-2.0
"""What a measured grid of gradients comes to: means by head dimension and mask, and determinism."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import NAMES, point_of, rivals, selected_rows
from flash_attention_workbench.bench.peers.gradients import FA3_DETERMINISTIC, PEER_NAMES

Ratio = Callable[[GridRow], float | None]


@dataclass(frozen=True)
class Mean:
    """Ratios over some points: their geometric mean, and the least with its point."""

    what: str  # the points, and what ours is seen beside
    beside: str
    points: int
    mean: float
    least: float
    least_at: str

    def __str__(self) -> str:
        return (
            f"{self.what} beside {self.beside}: geometric mean x{self.mean:.3f} over {self.points}"
            f" points, least x{self.least:.3f} at {self.least_at}"
        )


def gradient_means(rows: Sequence[GridRow]) -> list[Mean]:
    """Means beside the faster rival for each head dimension and mask, and for all points beside
    each peer; then those of the deterministic mode, and of other configs."""
    right = [row for row in selected_rows(rows) if row.ok]
    means = _by_part("ours", f"the faster of {rivals()}", right, lambda row: row.ratio)
    for name in PEER_NAMES[:3]:
        means += _mean("ours", NAMES[name], right, _beside(name))
    means += _by_part("deterministic", NAMES[FA3_DETERMINISTIC], right, _beside(FA3_DETERMINISTIC))
    means += _mean("deterministic", "our other mode", right, _of_other_mode)
    others = [row for row in rows if row.ok and not row.selected]
    for config in dict.fromkeys(row.config for row in others):
        some = [row for row in others if row.config == config]
        for name in PEER_NAMES:
            means += _mean(config, NAMES[name], some, _beside(name))
    return means


def _beside(name: str) -> Ratio:
    return lambda row: row.multiple(name) if name in row.peers else None


def _of_other_mode(row: GridRow) -> float | None:
    return None if row.deterministic_ms is None else row.ms / row.deterministic_ms


def _by_part(what: str, beside: str, rows: Sequence[GridRow], ratio: Ratio) -> list[Mean]:
    means = _mean(what, beside, rows, ratio)
    for d in dict.fromkeys(row.d for row in rows):
        of_d = [row for row in rows if row.d == d]
        means += _mean(f"{what}, d {d}", beside, of_d, ratio)
        for causal in dict.fromkeys(row.causal for row in of_d):
            some = [row for row in of_d if row.causal == causal]
            mask = "causal" if causal else "full"
            means += _mean(f"{what}, d {d}, {mask}", beside, some, ratio)
    return means


def _mean(what: str, beside: str, rows: Sequence[GridRow], ratio: Ratio) -> list[Mean]:
    known = [(value, row) for row in rows if (value := ratio(row)) is not None]
    if not known:
        return []
    ratios = [value for value, _ in known]
    least, slow = min(known, key=lambda pair: pair[0])
    mean = statistics.geometric_mean(ratios)
    return [Mean(what, beside, len(known), mean, least, point_of(slow).label)]
