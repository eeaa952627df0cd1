# SPDX-License-Identifier: Apache-2.0
"""docs/distributed.md: what the simulator says of schedules, and what processes measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.render.blocks import table, wrap
from flash_attention.distributed import Estimate, h200, simulate

DOCUMENT = Path("docs/distributed.md")
SIMULATED, PROCESSES = "simulated", "processes"
PLOT = Path("distributed.png")  # beside the document
HEADS, HEADS_K, D = 32, 8, 128
GPUS = (8, 64, 1024)
LENGTHS = tuple(1 << power for power in range(13, 24, 2))
KINDS = ("ring", "all-gather", "heads", "two levels")


def kind(estimate: Estimate) -> str:
    """The schedule of an estimate in one word, or two."""
    return "two levels" if len(estimate.mesh) == 2 else estimate.schedule


@cache
def estimates(gpus: int, length: int, backward: bool = False) -> dict[str, Estimate]:
    """The fastest estimate of each kind."""
    found: dict[str, Estimate] = {}
    for estimate in simulate(length, gpus, heads=HEADS, heads_k=HEADS_K, d=D, backward=backward):
        found.setdefault(kind(estimate), estimate)
    return found


def simulated_block() -> str:
    """One million rows on one node, both passes, and the fastest schedule elsewhere."""
    rows = [
        [pass_, kind(e), " x ".join(map(str, e.mesh)), *_numbers(e)]
        for pass_, backward in (("forward", False), ("backward", True))
        for e in estimates(8, 1 << 20, backward).values()
    ]
    header = ["pass", "schedule", "mesh", "ms", "computing", "communicating", "hidden", "GB sent"]
    fastest = [[f"{length:,}", *(_fastest(gpus, length) for gpus in GPUS)] for length in LENGTHS]
    machine = h200()
    setting = (
        f"{machine.name}, BF16, causal, one sequence, {HEADS} heads of q and {HEADS_K} of k and v,"
        f" d {D}. {machine.near.gb_s:g} GB/s each way and {machine.near.latency_us:g} us within a"
        f" node of {machine.node}, {machine.far.gb_s:g} GB/s and {machine.far.latency_us:g} us"
        " beyond."
    )
    told = f"Simulated speed of each schedule by length, on {', '.join(map(str, GPUS))} GPUs"
    return wrap(
        SIMULATED,
        (
            f"{setting} One million rows (2^20) on 8 GPUs:",
            "",
            *table(header, rows, left=3),
            "",
            "The fastest forward pass, and its speed as a percentage of perfect scaling, which is"
            " that of one GPU times their number:",
            "",
            *table(["rows", *(f"{gpus} GPUs" for gpus in GPUS)], fastest, left=4),
            "",
            f"![{told}]({PLOT})",
        ),
    )


def _numbers(estimate: Estimate) -> list[str]:
    times = (estimate.seconds, estimate.computing, estimate.communicating)
    return [
        *(f"{1e3 * seconds:,.1f}" for seconds in times),
        f"{100 * estimate.hidden:.0f} %",
        f"{1e-9 * estimate.sent_bytes:.2f}",
    ]


def _fastest(gpus: int, length: int) -> str:
    best = min(estimates(gpus, length).values(), key=lambda estimate: estimate.seconds)
    mesh = " x ".join(map(str, best.mesh))
    return f"{kind(best)} {mesh}, {100 * _efficiency(best, gpus, length):.0f} %"


@cache
def _alone(length: int) -> float:
    (estimate,) = simulate(length, 1, heads=HEADS, heads_k=HEADS_K, d=D)
    return estimate.seconds


def _efficiency(estimate: Estimate, gpus: int, length: int) -> float:
    return _alone(length) / gpus / estimate.seconds


def simulated_figure() -> Figure:
    """The speed of every schedule by length, a panel for each number of GPUs."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, len(GPUS), sharey=True)
    for axes, gpus in zip(panels, GPUS, strict=True):
        found = {length: estimates(gpus, length) for length in LENGTHS if length >= 64 * gpus}
        for colour, name in enumerate(KINDS):
            points = [
                (length, 100 * _efficiency(every[name], gpus, length))
                for length, every in found.items()
                if name in every
            ]
            if points:
                axes.plot(*zip(*points, strict=True), f"C{colour}.-", linewidth=1, label=name)
        axes.set_xscale("log", base=2)
        axes.set_title(f"{gpus} GPUs", fontsize=10)
        axes.set_xlabel("rows of the sequence")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("percent of perfect scaling")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(KINDS), fontsize=8)
    return figure


def processes_block(record: Mapping[str, Any]) -> str:
    """Schedules on processes beside their simulation, from benchmarks/distributed.py."""
    rows = [
        [
            row["schedule"],
            row["pass"],
            f"{row['simulated_ms']:.1f}",
            f"{row['measured_ms']:.1f}",
            f"{100 * (row['measured_ms'] / row['simulated_ms'] - 1):+.1f} %",
        ]
        for row in record["rows"]
    ]
    heads, heads_k, d = record["heads"]
    setting = (
        f"{record['device']}, {record['ranks']} processes, torch {record['torch']},"
        f" {record['date']}. {record['length']:,} rows, no mask, {heads} heads of q and {heads_k}"
        f" of k and v, d {d}, float32."
    )
    header = ["schedule", "pass", "simulated, ms", "measured, ms", "difference"]
    return wrap(PROCESSES, (setting, "", *table(header, rows, left=2)))
