# SPDX-License-Identifier: Apache-2.0
"""The plot of the serving grid: how many times as fast as vLLM's FA3 every call is."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from flash_attention_workbench.bench.serving_run import ServingRow

_BAR, _GUIDE = "#6f9bd1", "#333333"


def serving_speeds(rows: Sequence[ServingRow], setting: str) -> Figure:
    """A bar for each step that FA3 was measured at; its speed is the dashed line."""
    seen = [(f"{row.label}\n{row.layer}", row.ratio) for row in rows if row.ratio is not None]
    figure = Figure(figsize=(10, 1.2 + 0.36 * len(seen)), layout="constrained")
    axes = figure.subplots()
    places, ratios = range(len(seen)), [ratio for _, ratio in seen]
    bars = axes.barh(places, ratios, color=_BAR, height=0.72)
    axes.bar_label(bars, fmt="%.2f", padding=4, fontsize=8)
    axes.axvline(1, color=_GUIDE, linewidth=1, linestyle="--")
    axes.set_yticks(places, [label for label, _ in seen], fontsize=7)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("times as fast as vLLM's FlashAttention-3 (1, dashed), packed queries")
    axes.set_title(setting, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
