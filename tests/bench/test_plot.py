# SPDX-License-Identifier: Apache-2.0
"""Plots hold the numbers they were given."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.patches import Rectangle

from flash_attention.bench import plot
from flash_attention.bench.comparison import compare
from tests.bench.made_up import made_up_results


def test_speed_bars_are_percent_of_fa2() -> None:
    axes = plot.speeds(compare(made_up_results())).axes[0]
    heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert heights == pytest.approx([40.0, 110.0])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1 base", "2 swizzle"]


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
