# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/measurements.md: every config tried over a grid, counters at its points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flash_attention.tools.bench.blocks import table, wrap
from flash_attention.tools.bench.grid_run import GridRow

ABLATIONS, POINTS = "ablations", "points"
_MASKS = {False: "full", True: "causal"}


def ablations_block(record: Mapping[str, Any], where: str) -> str:
    """TFLOP/s of every config at every point, from what `flash-attention bench` wrote."""
    rows = [GridRow(**row) for row in record["rows"]]
    lengths = sorted({row.seq for row in rows})
    everywhere: dict[str, dict[tuple[bool, int], float]] = {}
    for row in rows:
        everywhere.setdefault(row.config, {})[row.causal, row.seq] = row.tflops
    columns = [(causal, seq) for causal in _MASKS for seq in lengths]
    lines = []
    for config, speeds in everywhere.items():
        if any(point in speeds for point in columns):
            tile, switches = config.removeprefix("hopper").split(": ")
            cells = [f"{speeds[point]:.0f}" if point in speeds else "" for point in columns]
            lines.append([tile, switches.removeprefix("tma+specialised+"), *cells])
    header = ["tile", "switches", *(f"{_MASKS[causal]} {seq}" for causal, seq in columns)]
    setting = f"{where}. {record['dtype']}, TFLOP/s, medians of interleaved runs, L2 cold."
    return wrap(ABLATIONS, (setting, "", *table(header, lines, left=2)))


def points_block(record: Mapping[str, Any], where: str) -> str:
    """Nsight Compute's counters of the selected kernels, from benchmarks/profile_points.py."""
    counters = [name for name in record["rows"][0] if name not in ("d", "causal", "seq")]
    lines = [
        [
            f"d {row['d']} {_MASKS[row['causal']]} {row['seq']}",
            *(f"{row[name]:,.0f}" if row[name] >= 100 else f"{row[name]:.2f}" for name in counters),
        ]
        for row in record["rows"]
    ]
    setting = (
        f"{where}. BF16, 16k tokens, hidden 2048. The last five columns are warps stalled per"
        " issued instruction, by cause."
    )
    return wrap(POINTS, (setting, "", *table(["point", *counters], lines, left=1)))
