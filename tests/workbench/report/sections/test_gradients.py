# SPDX-License-Identifier: Apache-2.0
"""Gradients beside the peers: every mode is seen beside the peer that it was measured with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.stored import Stored, read_folder
from flash_attention_workbench.report.headline import headline
from flash_attention_workbench.report.sections.gradients import gradient_views, gradients_section
from flash_attention_workbench.report.sections.peers import speeds
from flash_attention_workbench.report.sections.shapes import shapes_section
from tests.workbench.report.made_up import gradient_grid, stored_results
from tests.workbench.report.parse import having, parse


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Stored, ...]:
    return stored_results(tmp_path)


def test_both_modes_are_shown_with_the_flop_of_the_pass(stored: tuple[Stored, ...]) -> None:
    plain, repeated = gradient_views(stored)
    assert (plain.label, repeated.label) == ("BF16", "BF16, deterministic")
    # 800, 500 and 300 TFLOP/s forward; 2.5 times the FLOP in twice the time
    assert [row.tflops for row in plain.rows] == pytest.approx([1000, 625, 375])
    assert [row.tflops for row in repeated.rows] == pytest.approx([500, 312.5, 187.5])
    of_both = [speeds(view.rows[:1]) for view in (plain, repeated)]
    assert [list(series) for series in of_both] == [
        ["ours", "fa3", "cudnn", "fa2"],
        ["ours", "fa3"],
    ]
    assert of_both[0]["fa3"][512] == pytest.approx(500)
    assert of_both[1]["fa3"][512] == pytest.approx(125)


def test_a_deterministic_mode_is_seen_beside_fa3s_in_its_process(
    stored: tuple[Stored, ...],
) -> None:
    plain, repeated = gradient_views(stored)
    assert plain.rows[0].ratio == 2.0
    # ours took as long there as the other mode here, FA3 eight times as long
    assert [row.ratio for row in repeated.rows] == [pytest.approx(8), None, None]
    found = parse(str(gradients_section(stored).body))
    captions = [e.text for e in having(found, "caption")]
    words = "BF16, deterministic: how many times as fast as FA3 in its deterministic mode."
    assert f"{words} Geometric mean 8.000" in captions


def test_a_switch_goes_between_modes(stored: tuple[Stored, ...]) -> None:
    section = gradients_section(stored)
    assert (section.anchor, section.sources) == ("gradients", ("i.json",))
    found = parse(str(section.body))
    labels = [(e.attributes["for"], e.text) for e in having(found, "label")]
    assert labels == [
        ("gradients-bf16", "BF16"),
        ("gradients-bf16-deterministic", "BF16, deterministic"),
    ]
    assert [e.attributes["id"] for e in having(found, "input")] == [name for name, _ in labels]
    assert [e.attributes["data-view"] for e in having(found, "div", "choice")] == [
        *("BF16", "BF16, deterministic")
    ]


def test_both_passes_follow(stored: tuple[Stored, ...], tmp_path: Path) -> None:
    grid = gradient_grid(Measured.TRAINING)
    (tmp_path / "l.json").write_text(json.dumps(grid))
    views = gradient_views(read_folder(tmp_path))
    assert [view.label for view in views] == [
        *("BF16", "BF16, deterministic"),
        *("BF16, both passes", "BF16, both passes, deterministic"),
    ]
    assert views[2].rows[0].tflops == pytest.approx(1400)
    assert speeds(views[2].rows[:1])["fa3"][512] == pytest.approx(700)


def test_gradients_of_other_shapes_are_with_the_shapes(tmp_path: Path) -> None:
    grid = gradient_grid()
    for row in grid["rows"]:
        row["heads_k"] = 2
    (tmp_path / "a.json").write_text(json.dumps({**grid, "grid": "backward_gqa"}))
    stored = read_folder(tmp_path)
    assert gradients_section(stored).body is None
    section = shapes_section(stored)
    assert section.sources == ("a.json",)
    found = parse(str(section.body))
    (caption,) = having(found, "figcaption")
    assert caption.text.startswith("Gradients with grouped heads of K and V")
    tips = [e.attributes["data-tip"] for e in having(found, "circle")]
    assert "ours: 1,000 TFLOP/s" in tips
    assert not any("deterministic" in tip for tip in tips)


def test_the_mean_stands_above_everything(stored: tuple[Stored, ...]) -> None:
    words = [words for _, words in headline(stored)]
    assert words[2] == (
        "times as fast as the faster of FA3 and cuDNN at gradients: geometric mean of 3 BF16"
        " points, Some GPU"
    )


def test_what_to_measure_is_said(tmp_path: Path) -> None:
    section = gradients_section([])
    assert section.body is None
    assert section.missing == (
        "No gradients were measured: `flash-attention bench --grid backward --json FILE` on a GPU"
        " does."
    )
