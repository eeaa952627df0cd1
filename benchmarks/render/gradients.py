# SPDX-License-Identifier: Apache-2.0
"""Backward passes and training for documents: grids, random problems, and curves of losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.render.blocks import table, wrap
from benchmarks.render.grid_tables import grid_table, is_plain, point_table
from benchmarks.render.random_problems import features_table
from benchmarks.training_curves import OURS, WINDOW, smooth
from flash_attention_workbench.bench.gradient_summary import gradient_means
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_summary import NAMES

CURVES, GRADIENT_PROBLEMS, LLAMA = "training-curves", "random-gradients", "llama"
CURVES_PLOT = "training.png"  # beside the document


def is_gradients(record: Mapping[str, Any]) -> bool:
    """Whether a measured grid is one of gradients."""
    forward = Measured.FORWARD.name
    return any(row.get("measured", forward) != forward for row in record["rows"])


def gradients_block(name: str, record: Mapping[str, Any], where: str, plot: str | None) -> str:
    """Gradients beside those of others over a grid, and the means."""
    rows = grid_rows(record)
    measured = Measured[rows[0].measured]
    setting = (
        f"{where}. {record['dtype']}, {measured.words}, with all of its kernels. A cell is TFLOP/s,"
        f" where a pass counts {measured.value} times the FLOP of the forward pass. A number in"
        " brackets is how many times as fast ours is, measured alternately. FA3 runs in a process"
        f" without cuDNN, beside ours. Numbers are medians with L2 {record.get('l2', 'cold')}."
    )
    means = [
        [m.what, m.beside, str(m.points), f"**{m.mean:.3f}**", f"{m.least:.3f}", m.least_at]
        for m in gradient_means(rows)
    ]
    header = ["ours", "beside", "points", "geometric mean", "least", "at"]
    told = f"TFLOP/s of {measured.words} by length, ours and the peers, for each d and mask"
    image = () if plot is None else ("", f"![{told}]({plot})")
    speeds = grid_table(rows) if is_plain(rows) else point_table(rows)
    return wrap(name, (setting, "", *speeds, "", *table(header, means, left=2), *image))


def gradient_problems_block(record: Mapping[str, Any], where: str) -> str:
    """What benchmarks/random_gradients.py found."""
    count, families = record["count"], record["families"]
    right = count - len(record["failures"])
    worst = ", ".join(f"{n} {w['share']:.0%}" for n, w in record["worst_gradients"].items())
    told = (
        f"{where}: the gradients of {right:,} of {count:,} random problems were right,"
        f" {families.get('sm90', 0):,} of them drawn for Hopper and {families.get('sm80', 0):,} for"
        f" sm_80 kernels. {record['kernels']} kernels ran. The largest errors as shares of what is"
        f" allowed: {worst}."
    )
    return wrap(GRADIENT_PROBLEMS, (told, "", *features_table(record["features"])))


def curves_block(record: Mapping[str, Any], where: str) -> str:
    """What benchmarks/training_curves.py found."""
    settings, found = record["settings"], record["comparison"]
    verdict = "within" if found["within"] else "outside of"
    lines = [
        [_name(name), *(f"{smooth(run)[-1]:.4f}" for run in runs)]
        for name, runs in record["losses"].items()
    ]
    repeats = len(next(iter(record["losses"].values())))
    header = ["attention", *(f"run {number + 1}" for number in range(repeats))]
    setting = (
        f"{where}. A transformer of {settings['layers']} layers, width {settings['d_model']},"
        f" {settings['heads']} heads, {settings['batch']} x {settings['seq']} bytes a step,"
        f" {settings['steps']} steps; float32 weights, bfloat16 autocast, the same start and text"
        f" in every run. A cell is the mean loss of the last {WINDOW} steps. In means over {WINDOW}"
        f" steps, runs of one kind differ by up to {found['run_to_run']:.5f}, and ours leaves the"
        f" range of the others' runs by at most {found['beyond']:.5f}: {verdict} the spread."
    )
    told = "The loss by step of runs with each attention, and how far each is from the mean of all"
    image = f"![{told}]({CURVES_PLOT})"
    return wrap(CURVES, (setting, "", *table(header, lines, left=1), "", image))


def llama_block(record: Mapping[str, Any], where: str) -> str:
    """What benchmarks/llama.py found."""
    names = {"fa_jit": "ours", "sdpa": "torch's SDPA", "fa3_operators": "FA3's operators"}
    lines = [
        [
            f"{row['batch']} x {row['length']:,}",
            *(f"{row['ms'][name]:.1f}" for name in names),
            *(f"{row['ms'][name] / row['ms']['fa_jit']:.3f}" for name in list(names)[1:]),
            f"{max(row['losses'].values()) - min(row['losses'].values()):.0e}",
        ]
        for row in record["rows"]
    ]
    header = ["tokens", *(f"{name}, ms" for name in names.values())]
    header += [*(f"of {name}" for name in list(names.values())[1:]), "losses apart"]
    setting = (
        f"{where}. A step is a forward and a backward pass of {record['tokens']:,} tokens. Times"
        " are medians of interleaved steps, and ratios the time of the other as a multiple of ours."
        " The losses of the first step are those of all contenders, and of eager attention where"
        " it has the memory."
    )
    return wrap(LLAMA, (setting, "", *table(header, lines, left=1)))


def curves_figure(record: Mapping[str, Any]) -> Figure:
    """Losses by step, and how far every run is from the mean of all."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, differences = figure.subplots(1, 2)
    every = [smooth(run) for runs in record["losses"].values() for run in runs]
    means = [sum(at) / len(at) for at in zip(*every, strict=True)]
    steps = range(WINDOW // 2, WINDOW * len(means), WINDOW)
    for colour, (name, runs) in enumerate(record["losses"].items()):
        for number, run in enumerate(runs):
            label = _name(name) if number == 0 else None
            losses.plot(range(len(run)), run, f"C{colour}", linewidth=0.8, label=label)
            apart = _differences(smooth(run), means)
            differences.plot(list(steps), apart, f"C{colour}", marker=".", linewidth=0.8)
    losses.set_ylabel("loss")
    differences.set_ylabel(f"loss less the mean of all runs, {WINDOW} steps each")
    for axes in (losses, differences):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    losses.legend(fontsize=8)
    return figure


def _differences(run: Sequence[float], means: Sequence[float]) -> list[float]:
    return [mine - mean for mine, mean in zip(run, means, strict=True)]


def _name(name: str) -> str:
    return name if name == OURS else NAMES.get(name, name)
