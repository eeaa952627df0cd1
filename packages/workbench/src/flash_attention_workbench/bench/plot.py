# SPDX-License-Identifier: Apache-2.0
"""Plots: rungs beside FlashAttention-2, a grid beside its peers, the instructions of rungs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flash_attention.files import write_whole
from flash_attention_workbench.bench.comparison import FA2, Comparison
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.grid_summary import (
    NAMES,
    best_rows,
    selected_rows,
    speed,
    unit,
)
from flash_attention_workbench.bench.peers import PEERS
from flash_attention_workbench.bench.peers.gradients import FA3_DETERMINISTIC

_BAR, _BESIDE, _GUIDE = "#6f9bd1", "#b9c4d0", "#333333"


def speeds(comparison: Comparison, setting: str) -> Figure:
    """Percent of FA2 (harmonic mean over the shapes) of every contender, a bar a line.

    A thin line goes from the worst shape to the best; the number stands behind both.
    """
    entries = [entry for entry in comparison.entries if entry.name != FA2]
    lines = range(len(entries))
    means = [100 * entry.mean_of_fa2 for entry in entries]
    worst, best = ([100 * f(entry.of_fa2) for entry in entries] for f in (min, max))
    figure = Figure(figsize=(10, 1.2 + 0.26 * len(entries)), layout="constrained")
    axes = figure.subplots()
    colours = [_BAR if entry.number is not None else _BESIDE for entry in entries]
    axes.barh(lines, means, color=colours, height=0.72)
    axes.hlines(lines, worst, best, color=_GUIDE, linewidth=1)
    for line, (mean, farthest) in enumerate(zip(means, best, strict=True)):
        at = (max(mean, farthest), line)
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the dashed line
        axes.annotate(
            f"{mean:.0f}", at, (5, 0), textcoords="offset points", va="center", bbox=paper
        )
    axes.axvline(100, color=_GUIDE, linewidth=1, linestyle="--")
    axes.set_yticks(lines, [entry.title for entry in entries])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("percent of FlashAttention-2 (100, dashed); thin lines: worst to best length")
    axes.set_title(setting, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def grid_speeds(rows: Sequence[GridRow], setting: str = "") -> Figure:
    """A panel for each head dimension and mask: the speeds of ours and of the peers by length.

    Ours is the selected kernel; where none was right, the fastest that was.
    """
    chosen = [row for row in selected_rows(rows) if row.ok] or best_rows(rows)
    panels: dict[tuple[int, str], list[GridRow]] = {}
    for row in chosen:
        mask = "window" if row.window else "causal" if row.causal else "full"
        panels.setdefault((row.d, mask), []).append(row)
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 2.6 * lines), layout="constrained")
    figure.suptitle(setting, fontsize=11)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, ((d_head, mask), here) in zip(grid.flat, panels.items(), strict=False):
        _draw_panel(axes, here)
        axes.set_title(f"d_head {d_head}, {mask}", fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    handles, labels = max((axes.get_legend_handles_labels() for axes in grid.flat), key=_count)
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[GridRow]) -> None:
    places = range(len(rows))
    axes.plot(places, [speed(r, r.ms) for r in rows], color=_BAR, marker="o", label="ours")
    for colour, name in enumerate((*PEERS, FA3_DETERMINISTIC)):
        there = [i for i in places if name in rows[i].peers]
        if there:
            speeds = [speed(rows[i], rows[i].peers[name]) for i in there]
            axes.plot(there, speeds, f"C{colour + 1}", marker=".", linewidth=1, label=NAMES[name])
    labels = [f"{row.batch} x {row.seq}" for row in rows]
    axes.set_xticks(places, labels, rotation=25, ha="right", fontsize=8)
    axes.set_ylabel(unit(rows))
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _count(legend: tuple[list[Artist], list[str]]) -> int:
    return len(legend[1])


def instruction_mix(mixes: Mapping[str, Mapping[str, int]], *, language: str, arch: str) -> Figure:
    """Stacked bars: how many instructions of each class every kernel of `mixes` has."""
    classes = list(dict.fromkeys(name for mix in mixes.values() for name in mix))
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab20"]
    floor = [0] * len(mixes)
    for index, name in enumerate(classes):
        counts = [mix.get(name, 0) for mix in mixes.values()]
        if any(counts):
            axes.bar(
                range(len(mixes)),
                counts,
                bottom=floor,
                label=name,
                color=colours(index),
            )
            floor = [below + count for below, count in zip(floor, counts, strict=True)]
    axes.set_ylabel(f"{language} instructions, {arch}")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", fontsize=8)
    _label_contenders(figure, list(mixes))
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes `figure` as PNG, the same bytes for the same numbers."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130, metadata={"Software": None})
    write_whole(path, picture.getvalue())


def _label_contenders(figure: Figure, labels: Sequence[str]) -> None:
    axes = figure.axes[0]
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
