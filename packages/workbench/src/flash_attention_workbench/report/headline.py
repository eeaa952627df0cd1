# SPDX-License-Identifier: Apache-2.0
"""The few numbers that stand above everything."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention_workbench.bench.comparison import compare_file
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_summary import mean_ratio, rivals
from flash_attention_workbench.bench.stored import GRID, LADDER, Stored, newest, of_kind
from flash_attention_workbench.report.sections.gradients import gradient_views


def headline(stored: Sequence[Stored]) -> list[tuple[str, str]]:
    """What the results come to: the mean multiple, the fastest point, the height of the ladder."""
    figures = []
    grids = of_kind(stored, GRID)
    if grids:
        grid = max(grids, key=lambda one: (len(one.record["rows"]), one.record["dtype"] == "BF16"))
        rows = grid_rows(grid.record)
        dtype, device = grid.record["dtype"], grid.record["device"]
        if (mean := mean_ratio(rows)) is not None:
            words = (
                f"times as fast as the faster of {rivals()}: geometric mean of {len(rows)} "
                f"{dtype} points, {device}"
            )
            figures.append((f"{mean:.2f}", words))
        fastest = max((row for row in rows if row.ok), key=lambda row: row.tflops)
        mask = "causal" if fastest.causal else "no mask"
        words = (
            f"TFLOP/s at the fastest point: d {fastest.d}, {mask}, {fastest.seq:,} rows, {dtype}"
        )
        figures.append((f"{fastest.tflops:.0f}", words))
    for view in gradient_views(stored)[:1]:
        if (mean := mean_ratio(view.rows)) is not None:
            words = (
                f"times as fast as {view.beside} at gradients: geometric mean of "
                f"{len(view.rows)} {view.label} points, {view.source.record['device']}"
            )
            figures.append((f"{mean:.2f}", words))
    if ladder := newest(stored, LADDER):
        _, comparison = compare_file(ladder.path)
        rungs = [entry for entry in comparison.entries if entry.number is not None]
        top = max(rungs, key=lambda rung: rung.mean_tflops)
        words = (
            f"times as fast as the first of {len(rungs)} rungs: rung {top.number}, {top.name}. "
            "One change a rung"
        )
        figures.append((f"{top.mean_tflops / rungs[0].mean_tflops:.1f}", words))
    return figures
