# SPDX-License-Identifier: Apache-2.0
"""Plots hold the numbers they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from flash_attention_workbench.bench import plot
from flash_attention_workbench.bench.comparison import compare
from tests.workbench.bench.made_up import made_up_results
from tests.workbench.bench.made_up_grid import made_up_rows


def test_speed_bars_are_percent_of_fa2() -> None:
    measured = made_up_results()
    axes = plot.speeds(compare(measured), measured.setting).axes[0]
    lengths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert lengths == pytest.approx([40.0, 110.0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1 base", "2 swizzle"]
    # the number stands behind the bar and behind the best shape, which is 50 % for the first rung
    written = {text.get_text(): text.xy[0] for text in axes.texts if isinstance(text, Annotation)}
    assert written == pytest.approx({"40": 50.0, "110": 110.0})
    assert axes.get_title("left") == "Some GPU, FP16, 16 heads of 128, forward, no mask unless said"


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
        plot.save(plot.speeds(compare(made_up_results()), "here"), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
