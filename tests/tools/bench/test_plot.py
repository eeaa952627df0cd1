# SPDX-License-Identifier: Apache-2.0
"""Plots hold the numbers they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from flash_attention.tools.bench import plot
from flash_attention.tools.bench.comparison import compare
from tests.tools.bench.made_up import made_up_causal_results, made_up_results
from tests.tools.bench.made_up_grid import made_up_rows


def test_speed_bars_are_percent_of_fa2() -> None:
    axes = plot.speeds(compare(made_up_results())).axes[0]
    heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert heights == pytest.approx([40.0, 110.0])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1 base", "2 swizzle"]


def test_bars_under_a_causal_mask_are_told_apart() -> None:
    axes = plot.speeds(compare(made_up_causal_results())).axes[0]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [bar.get_height() for bar in bars] == pytest.approx([40.0, 110.0, 150.0, 200.0])
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels == ["1 base", "2 swizzle", "2 swizzle, causal", "3 halves, causal"]
    plain, *_, causal = (bar.get_facecolor() for bar in bars)
    assert [bar.get_facecolor() for bar in bars] == [plain, plain, causal, causal]
    assert plain != causal


def test_a_grid_has_a_panel_a_mask_and_a_line_a_contender() -> None:
    first, second = plot.grid_speeds(made_up_rows()).axes
    assert (first.get_title(), second.get_title()) == ("d_head 64, full", "d_head 128, causal")
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in first.lines}
    assert lines["ours"].tolist() == pytest.approx([800, 500])
    assert lines["FA3"].tolist() == pytest.approx([400])
    assert lines["cuDNN"].tolist() == pytest.approx([200, 1000])
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["32 x 512", "16 x 1024"]
    assert first.get_ylabel() == "TFLOP/s"


def test_mix_bars_stack_to_the_whole_kernel() -> None:
    mixes = {"1 base": {"tensor core": 8, "move": 2}, "2 swizzle": {"tensor core": 8, "fp32": 5}}
    axes = plot.instruction_mix(mixes, language="SASS", arch="sm_80").axes[0]
    tops: dict[float, float] = {}
    for bar in axes.patches:
        assert isinstance(bar, Rectangle)
        centre = bar.get_x() + bar.get_width() / 2
        tops[round(centre)] = max(tops.get(round(centre), 0.0), bar.get_y() + bar.get_height())
    assert tops == {0: 10.0, 1: 13.0}
    assert axes.get_ylabel() == "SASS instructions, sm_80"


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        plot.save(plot.speeds(compare(made_up_results())), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
