# SPDX-License-Identifier: Apache-2.0
"""Means, the best of several and the last lines of a run, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention_workbench.bench.grid_summary import (
    best_rows,
    mean_ratio,
    remark,
    selected_rows,
    slower_than_peers,
    summary,
)
from tests.workbench.bench.made_up_grid import CAUSAL, LONG, SHORT, made_up_rows


def test_the_mean_is_geometric_over_points_with_a_rival() -> None:
    rows = made_up_rows()
    assert [row.ratio for row in rows] == pytest.approx([2.0, 4.0, 0.5, None])
    assert mean_ratio(selected_rows(rows)) == pytest.approx(1.0)
    assert mean_ratio(best_rows(rows)) == pytest.approx(2**0.5)
    assert mean_ratio(rows[3:]) is None


def test_slower_ones_are_counted_where_a_kernel_was_selected_and_has_a_rival() -> None:
    rows = made_up_rows()
    assert slower_than_peers(rows) == "below x0.97: 1 of 2 points"
    rows[2] = replace(rows[2], ratio=0.98)
    assert slower_than_peers(rows) == "below x0.97: 0 of 2 points"


def test_a_wrong_kernel_is_never_the_best() -> None:
    rows = made_up_rows()
    rows[1] = replace(rows[1], ok=False)
    assert [row.config for row in best_rows(rows)] == [SHORT, SHORT, CAUSAL]
    assert mean_ratio(best_rows(rows)) == pytest.approx(1.0)
    assert "WRONG: 1 of 4 rows" in summary(rows, [], {})


def test_the_last_lines_name_configs_and_what_is_missing() -> None:
    missing = [{"name": "fa3", "why": "no library"}] * 2 + [{"name": "cudnn", "why": "no"}]
    lines = summary(made_up_rows(), missing, {SHORT: 1, LONG: 2})
    least = "least x0.500 at 16 x 1024, 32 h, d 64, full"
    assert lines == [
        f"[1] {SHORT}",
        f"[2] {LONG}",
        "missing at 2 points: fa3: no library",
        "missing at 1 points: cudnn: no",
        f"selected: geometric mean x1.000 over 2 points, {least}",
        f"best: geometric mean x1.414 over 2 points, {least}",
    ]


def test_the_gain_over_the_heuristics_choice_is_told_where_it_was_timed() -> None:
    first, other, second, third = made_up_rows()
    same = replace(first, heuristic_ms=first.ms)
    faster = replace(second, heuristic_ms=1.21 * second.ms)
    assert [remark(row) for row in (same, faster, third)] == [
        "",
        "1.210 times as fast as the heuristic's choice",
        "",
    ]
    assert summary([same, other, faster, third], [], {})[-1] == (
        "selected beside the heuristic's choice: geometric mean x1.100 over 2 points,"
        " least x1.000 at 32 x 512, 32 h, d 64, full"
    )
    wrong = replace(faster, ok=False)
    assert "over 1 points" in summary([same, wrong], [], {})[-1]
