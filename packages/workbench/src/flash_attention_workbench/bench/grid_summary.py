# SPDX-License-Identifier: Apache-2.0
"""What a measured grid comes to: geometric means of the ratios, and the words beside them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_run import RIVALS, GridRow
from flash_attention_workbench.bench.statistics import tflops

NOISE = 0.97  # ratios from here to 1 may be noise
NAMES = {
    "fa3": "FA3",
    "cudnn": "cuDNN",
    "fa2": "FA2",
    "fa3_deterministic": "FA3 deterministic",
    "flex": "FlexAttention",
    "efficient": "SDPA efficient",
    "sdpa_math": "SDPA math",
}


def point_of(row: GridRow) -> Point:
    return Point(
        *(row.d, row.causal, row.seq, row.batch, row.heads),
        *(row.heads_k, row.seq_q, row.window, row.lengths),
    )


def has_shapes(rows: Iterable[GridRow]) -> bool:
    """Whether a problem is more than self-attention of one length and as many heads of K as Q."""
    return any(
        row.heads_k not in (0, row.heads) or row.seq_q or row.window or row.lengths for row in rows
    )


def selected_rows(rows: Iterable[GridRow]) -> list[GridRow]:
    """The rows of what a user gets: the selected config of every point."""
    return [row for row in rows if row.selected]


def best_rows(rows: Iterable[GridRow]) -> list[GridRow]:
    """The fastest right kernel of every point."""
    best: dict[Point, GridRow] = {}
    for row in rows:
        point = point_of(row)
        if row.ok and (point not in best or row.ms < best[point].ms):
            best[point] = row
    return list(best.values())


def mean_ratio(rows: Iterable[GridRow]) -> float | None:
    """Geometric mean over the points that have a rival; a wrong kernel counts for nothing."""
    ratios = [row.ratio for row in rows if row.ok and row.ratio is not None]
    return statistics.geometric_mean(ratios) if ratios else None


def summary(
    rows: Sequence[GridRow], refused: Iterable[Mapping[str, Any]], legend: Mapping[str, int]
) -> list[str]:
    """Short lines to end a run with: which config is which, who is missing and why, the means."""
    lines = [f"[{number}] {config}" for config, number in legend.items()]
    reasons: dict[tuple[str, str], int] = {}
    for entry in refused:
        key = (str(entry["name"]), str(entry["why"]))
        reasons[key] = reasons.get(key, 0) + 1
    lines += [f"missing at {n} points: {name}: {why}" for (name, why), n in reasons.items()]
    if wrong := [row for row in rows if not row.ok]:
        lines.append(f"WRONG: {len(wrong)} of {len(rows)} rows")
    for what, some in (("selected", selected_rows(rows)), ("best", best_rows(rows))):
        lines += _mean(what, {point_of(row): row.ratio for row in some if row.ok})
    right = [row for row in selected_rows(rows) if row.ok]
    costs = {point_of(row): forward_cost(row) for row in right}
    lines += _mean("time beside the forward pass", costs)
    gains = {point_of(row): heuristic_gain(row) for row in right}
    return lines + _mean("selected beside the heuristic's choice", gains)


def slower_than_peers(rows: Iterable[GridRow]) -> str:
    """How many problems are slower than the faster rival, beyond noise."""
    ratios = [row.ratio for row in selected_rows(rows) if row.ok and row.ratio is not None]
    slower = sum(ratio < NOISE for ratio in ratios)
    return f"below x{NOISE}: {slower} of {len(ratios)} points"


def _mean(what: str, ratios: Mapping[Point, float | None]) -> list[str]:
    known = {point: ratio for point, ratio in ratios.items() if ratio is not None}
    if not known:
        return []
    slow = min(known, key=lambda point: known[point])
    return [
        f"{what}: geometric mean x{statistics.geometric_mean(known.values()):.3f} over"
        f" {len(known)} points, least x{known[slow]:.3f} at {slow.label}"
    ]


def heuristic_gain(row: GridRow) -> float | None:
    """How many times as fast a selected kernel is as what is chosen without tables."""
    return None if row.heuristic_ms is None else row.heuristic_ms / row.ms


def forward_cost(row: GridRow) -> float | None:
    """How many times the time of a forward pass a call with tangents takes."""
    return None if row.forward_ms is None else row.ms / row.forward_ms


def speed(row: GridRow, milliseconds: float) -> float:
    """What `milliseconds` at a row's point mean: TFLOP/s, or GB/s where K and V are the traffic."""
    if row.gbps is not None:
        return row.gbps * row.ms / milliseconds
    return tflops(round(point_of(row).flop * Measured[row.measured].value), milliseconds)


def unit(rows: Iterable[GridRow]) -> str:
    """What the speeds of these rows are counted in."""
    units = {"TFLOP/s" if row.gbps is None else "GB/s of K and V" for row in rows}
    return " or ".join(sorted(units))


def remark(row: GridRow) -> str:
    """What a speed is seen beside: a copy's, the time without the window, or without tables."""
    if row.gbps is not None and row.copy_gbps is not None:
        return f"{100 * row.gbps / row.copy_gbps:.0f}% of a copy's {row.copy_gbps:.0f} GB/s"
    if row.full_ms is not None:
        return f"{row.full_ms / row.ms:.2f} times as fast as without the window"
    if (cost := forward_cost(row)) is not None:
        return f"{cost:.2f} times the time of a forward pass"
    if (gain := heuristic_gain(row)) is not None and row.heuristic_ms != row.ms:
        return f"{gain:.3f} times as fast as the heuristic's choice"
    return ""


def rivals() -> str:
    """What the ratios are to, in words."""
    return " and ".join(NAMES[name] for name in RIVALS)
