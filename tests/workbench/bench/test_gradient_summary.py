# SPDX-License-Identifier: Apache-2.0
"""Means of a grid of gradients."""

from __future__ import annotations

from dataclasses import replace

from flash_attention_workbench.bench.gradient_summary import gradient_means
from flash_attention_workbench.bench.grid_run import GridRow
from tests.workbench.bench.made_up_grid import grid_row


def row(d: int, causal: bool, ms: float, fa3: float, *, ok: bool = True) -> GridRow:
    made = grid_row("hopper_backward(...)", (d, causal, 512), ms, {"fa3": fa3}, ok=ok)
    return replace(
        made,
        measured="BACKWARD",
        peers={"fa3": fa3, "fa3_deterministic": 4 * ms},
        beside={"fa3": ms, "fa3_deterministic": 2 * ms},
        deterministic_ms=1.25 * ms,
    )


def test_means_by_head_dimension_and_mask() -> None:
    rows = [row(64, False, 1.0, 1.0), row(64, True, 1.0, 4.0), row(128, False, 1.0, 2.0)]
    wrong = row(128, True, 1.0, 100.0, ok=False)
    means = [str(mean) for mean in gradient_means([*rows, wrong])]
    at = "at 32 x 512, 32 h, d 64, full"
    rivals = "the faster of FA3 and cuDNN"
    assert means[:3] == [
        f"ours beside {rivals}: geometric mean x2.000 over 3 points, least x1.000 {at}",
        f"ours, d 64 beside {rivals}: geometric mean x2.000 over 2 points, least x1.000 {at}",
        f"ours, d 64, full beside {rivals}: geometric mean x1.000 over 1 points, least x1.000 {at}",
    ]
    assert f"ours beside FA3: geometric mean x2.000 over 3 points, least x1.000 {at}" in means
    assert (
        f"deterministic beside FA3 deterministic: geometric mean x2.000 over 3 points, least"
        f" x2.000 {at}" in means
    )
    assert means[-1] == (
        "deterministic beside our other mode: geometric mean x0.800 over 3 points, least x0.800"
        f" {at}"
    )


def test_other_configs_have_means_of_their_own() -> None:
    other = replace(row(64, False, 2.0, 3.0), selected=False, config="backward(...)", beside={})
    means = [str(mean) for mean in gradient_means([other])]
    assert means[0].startswith("backward(...) beside FA3: geometric mean x1.500 over 1 points")


def test_nothing_measured_has_no_mean() -> None:
    assert gradient_means([]) == []
