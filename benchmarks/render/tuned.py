# SPDX-License-Identifier: Apache-2.0
"""What a table of measured choices is worth, beside the choice that is made without one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_summary import heuristic_gain, point_of, selected_rows


def tuned_name(record: Mapping[str, Any]) -> str:
    """The block that such results belong into."""
    return f"tuned-{record['grid']}-{record['dtype'].lower()}"


def tuned_block(record: Mapping[str, Any], where: str) -> str:
    """The points at which a table says otherwise, and all of them together."""
    rows = [row for row in selected_rows(grid_rows(record)) if row.ok]
    told = [(row, gain) for row in rows if (gain := heuristic_gain(row)) is not None]
    lines = [
        [
            point_of(row).label,
            f"`{row.config}`",
            f"{row.heuristic_ms:.4f}",
            f"{row.ms:.4f}",
            f"{gain:.3f}",
        ]
        for row, gain in told
        if row.ms != row.heuristic_ms
    ]
    setting = (
        f"{where}. {record['dtype']}, forward. Times are medians of {record['repeats']} interleaved"
        f" runs of both kernels with L2 {record['l2']}. At the other {len(told) - len(lines)}"
        " points the table keeps the heuristic's choice."
    )
    gains = [gain for _, gain in told]
    over = (
        f"Over all {len(gains)} points the table's choice is"
        f" **{statistics.geometric_mean(gains):.3f}** times as fast in geometric mean, and"
        f" {min(gains):.3f} times as fast at the least."
    )
    header = ["problem", "config", "heuristic, ms", "table, ms", "gain"]
    return wrap(tuned_name(record), (setting, "", *table(header, lines, left=2), "", over))
