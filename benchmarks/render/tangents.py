# SPDX-License-Identifier: Apache-2.0
"""Forward mode: what `flash-attention bench --grid tangent` measured."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from benchmarks.render.blocks import wrap
from benchmarks.render.grid_tables import point_table
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_summary import forward_cost, selected_rows

_TANGENT = Measured.TANGENT


def is_tangents(record: Mapping[str, Any]) -> bool:
    """Whether a measured grid is one of tangents."""
    return any(row.get("measured") == _TANGENT.name for row in record["rows"])


def tangents_block(name: str, record: Mapping[str, Any], where: str) -> str:
    """The output and its tangent over a grid, beside the forward pass."""
    rows = grid_rows(record)
    right = [row for row in selected_rows(rows) if row.ok]
    costs = [cost for row in right if (cost := forward_cost(row)) is not None]
    setting = (
        f"{where}. {record['dtype']}, the output and its tangent. A cell is TFLOP/s, where a call"
        f" counts {_TANGENT.value:g} times the FLOP of the forward pass. Numbers are medians of"
        f" {record['repeats']} interleaved runs with L2 {record.get('l2', 'cold')}."
    )
    over = (
        f"Time as a multiple of that of the forward pass: **{geometric_mean(costs):.2f}** in"
        f" geometric mean, {min(costs):.2f} to {max(costs):.2f}. The largest error, of the output,"
        f" its tangent or that of the log-sum-exp, is {max(row.error_ratio for row in right):.2f}"
        f" times that of torch with every step rounded to {record['dtype']}."
    )
    return wrap(name, (setting, "", *point_table(rows), "", over))
