# SPDX-License-Identifier: Apache-2.0
"""Every config tried over a grid, and Nsight Compute's counters of rungs and of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.grid_record import grid_rows

ABLATIONS, POINTS, PROFILE = "ablations", "points", "profile"
_MASKS = {False: "full", True: "causal"}


def ablations_block(record: Mapping[str, Any], where: str) -> str:
    """TFLOP/s of every config at every point, from what `flash-attention bench` wrote."""
    rows = grid_rows(record)
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
    how = "Numbers are medians of interleaved runs with L2 cold."
    setting = f"{where}. {record['dtype']}, TFLOP/s. {how}"
    return wrap(ABLATIONS, (setting, "", *table(header, lines, left=2)))


def profile_block(record: Mapping[str, Any], where: str) -> str:
    """Nsight Compute's counters of every rung, from what benchmarks/profile_ladder.py wrote."""
    rows = {f"{row['rung']} {row['name']}": row for row in record["rows"]}
    batch, seq_len, heads, d_head = record["shape"]
    setting = f"{where}. Batch {batch}, {seq_len} rows, {heads} heads of {d_head}, FP16."
    return wrap(PROFILE, _counters(setting, "rung", rows, ("rung", "name")))


def points_block(record: Mapping[str, Any], where: str) -> str:
    """Nsight Compute's counters of the selected kernels, from benchmarks/profile_points.py."""
    rows = {f"d {row['d']} {_MASKS[row['causal']]} {row['seq']}": row for row in record["rows"]}
    setting = f"{where}. BF16, 16k tokens, hidden 2048."
    return wrap(POINTS, _counters(setting, "point", rows, ("d", "causal", "seq")))


def _counters(
    setting: str, what: str, rows: Mapping[str, Mapping[str, Any]], told: Sequence[str]
) -> list[str]:
    """The setting and one line a row, with a column for each field that its name does not tell."""
    names = [name for name in next(iter(rows.values())) if name not in told]
    lines = [[label, *(_number(row[name]) for name in names)] for label, row in rows.items()]
    stalls = "The last five columns are stalled warps per issued instruction, by cause."
    return [f"{setting} {stalls}", "", *table([what, *names], lines, left=1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
