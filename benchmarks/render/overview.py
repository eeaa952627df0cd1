# SPDX-License-Identifier: Apache-2.0
"""The README's table of results: one line for each measured workload."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.render.blocks import table, wrap
from benchmarks.render.measured import fa3_build
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_summary import mean_ratio, rivals, selected_rows
from flash_attention_workbench.bench.stored import Stored

OVERVIEW = "overview"
WORKLOADS = {
    "h200_hopper_grid_bf16.json": ("FlashAttention-3's own benchmark, BF16", "attention.md"),
    "h200_hopper_grid_fp16.json": ("FlashAttention-3's own benchmark, FP16", "measurements.md"),
    "h200_random_bf16.json": ("random problems of real models", "measurements.md"),
    "h200_tuned_models_bf16.json": ("shapes of twelve models", "attention.md"),
    "h200_varlen_bf16.json": ("packed sequences", "attention.md"),
    "h200_window_bf16.json": ("sliding windows", "attention.md"),
    "h200_decode_bf16.json": ("decoding, one query", "attention.md"),
    "h200_backward_bf16.json": ("the backward pass, BF16", "backward.md"),
    "h200_backward_random_bf16.json": ("the backward pass of random problems", "backward.md"),
    "h200_training_bf16.json": ("both passes through autograd, BF16", "backward.md"),
}
"""Stored results: what they measure, and the page below docs/ that has every number."""


def overview_block(stored: Iterable[Stored]) -> str:
    """How many times as fast ours is at every workload, from what `flash-attention bench` wrote."""
    found = {one.path.name: one.record for one in stored}
    lines = []
    for name, (what, page) in WORKLOADS.items():
        record = found[name]
        rows = [row for row in selected_rows(grid_rows(record)) if row.ok]
        ratios = [row.ratio for row in rows if row.ratio is not None]
        cells = (f"{mean_ratio(rows):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}")
        place = (fa3_build(record), (record["commit"] or "")[:8])
        lines.append([what, f"[docs/{page}](docs/{page})", *place, str(len(ratios)), *cells])
    header = ["workload", "every number", "FA3", "commit", "points", "speed", "range"]
    devices = " and ".join(dict.fromkeys(found[name]["device"] for name in WORKLOADS))
    setting = (
        f"Measured on: {devices}. The speed is a multiple of that of the faster of {rivals()}, as"
        " a geometric mean over the points and as a range."
    )
    return wrap(OVERVIEW, (setting, "", *table(header, lines, left=4)))
