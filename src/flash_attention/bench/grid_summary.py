# SPDX-License-Identifier: Apache-2.0
"""What a measured grid comes to: geometric means of the ratios, and a table for documents."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flash_attention.bench.blocks import table
from flash_attention.bench.grid import Point
from flash_attention.bench.grid_run import RIVALS, GridRow
from flash_attention.bench.peers import PEERS
from flash_attention.bench.statistics import tflops

NAMES = {"fa3": "FA3", "cudnn": "cuDNN", "fa2": "FA2"}


def point_of(row: GridRow) -> Point:
    return Point(row.d, row.causal, row.seq, row.batch, row.heads)


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
        if (mean := mean_ratio(some)) is not None:
            rated = {row.ratio: row for row in some if row.ok and row.ratio is not None}
            slow = rated[min(rated)]
            mask = "causal" if slow.causal else "full"
            count = sum(row.ok and row.ratio is not None for row in some)
            lines.append(
                f"{what}: geometric mean x{mean:.3f} over {count} points,"
                f" least x{slow.ratio:.3f} at d {slow.d} {mask} {slow.seq}"
            )
    return lines


def grid_table(rows: Sequence[GridRow]) -> list[str]:
    """TFLOP/s of the selected kernels and the peers, one line a head dimension, mask and kernel."""
    chosen = {point_of(row): row for row in selected_rows(rows)}
    lengths = sorted({point.seq_len for point in chosen})
    lines = []
    for d, causal in dict.fromkeys((point.d_head, point.causal) for point in chosen):
        here = {
            p.seq_len: (p, row) for p, row in chosen.items() if (p.d_head, p.causal) == (d, causal)
        }
        label = [str(d), "causal" if causal else "full"]
        lines.append([*label, "ours", *(_ours(here.get(n)) for n in lengths)])
        for name in PEERS:
            if any(name in row.peers for _, row in here.values()):
                cells = [_theirs(here.get(n), name) for n in lengths]
                lines.append([*label, NAMES[name], *cells])
    return table(["d_head", "mask", "kernel", *map(str, lengths)], lines, left=3)


def _ours(found: tuple[Point, GridRow] | None) -> str:
    if found is None:
        return ""
    _, row = found
    if not row.ok:
        return "wrong"
    ratio = "" if row.ratio is None else f" (**{row.ratio:.2f}**)"
    return f"{row.tflops:.0f}{ratio}"


def _theirs(found: tuple[Point, GridRow] | None, name: str) -> str:
    if found is None or name not in found[1].peers:
        return ""
    point, row = found
    return f"{tflops(point.flop, row.peers[name]):.0f}"


def rivals() -> str:
    """What the ratios are to, in words."""
    return " and ".join(NAMES[name] for name in RIVALS)
