# SPDX-License-Identifier: Apache-2.0
"""The ladder's bars encode its speeds, and its panels its source and counters."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from flash_attention_workbench.bench.comparison import compare
from flash_attention_workbench.bench.stored import GRADIENTS, GRID, read_folder
from flash_attention_workbench.report.rungs import backward_ladder, forward_ladder
from flash_attention_workbench.report.sections.ladder import ladder_section, marks
from tests.workbench.bench.made_up import made_up_results
from tests.workbench.bench.made_up_grid import grid_row, made_up_grid
from tests.workbench.report.made_up import (
    BACKWARD_RUNGS,
    RUNGS,
    backward_results,
    stored_results,
)
from tests.workbench.report.parse import Element, having, parse

FA2, BASE, SWIZZLE = 150.0, 60.0, 165.0  # harmonic means
TOP = 1.04 * SWIZZLE


@pytest.fixture
def found(tmp_path: Path) -> list[Element]:
    body = ladder_section(stored_results(tmp_path), forward_ladder(RUNGS)).body
    assert body is not None
    return parse(body)


def test_a_bar_goes_from_nought_to_the_speed(found: list[Element]) -> None:
    base, swizzle = having(found, "rect", "bar")
    (gained,) = having(found, "rect", "bar gained")
    for bar in (base, swizzle):
        assert bar.number("x") == 0
        assert bar.number("width") == pytest.approx(100 * BASE / TOP, abs=0.01)
    assert gained.number("x") == pytest.approx(100 * BASE / TOP, abs=0.01)
    assert gained.number("width") == pytest.approx(100 * (SWIZZLE - BASE) / TOP, abs=0.01)


def test_the_peer_is_a_line_through_every_row(found: list[Element]) -> None:
    lines = having(found, "line", "mark fa2")
    assert len(lines) == 1 + len(RUNGS)  # the heading has its name
    for line in lines:
        assert line.number("x1") == line.number("x2")
        assert line.number("x1") == pytest.approx(100 * FA2 / TOP, abs=0.01)
    assert "FA2 150" in [e.text for e in having(found, "text")]


def test_the_numbers_beside_the_bar(found: list[Element]) -> None:
    assert [e.text for e in having(found, "span", "speed")] == ["TFLOP/s", "60", "165"]
    assert [e.text for e in having(found, "span", "gain up")] == ["+175 %"]
    assert [e.text for e in having(found, "span", "share")] == ["of FA2", "40 %", "110 %"]


def test_a_rung_opens_to_its_source_and_counters(found: list[Element]) -> None:
    rungs = {e.attributes["id"]: e for e in having(found, "details") if "id" in e.attributes}
    assert list(rungs) == ["rung-1", "rung-2"]
    assert "The <first> & plainest" in rungs["rung-1"].text
    (diff,) = having(found, "pre", "diff")
    lines = [e.text for e in found if e.tag == "span" and "diff" in e.inside]
    assert lines == ["@@ -1,2 +1,2 @@", " same", "-old<int>();", "+new<int>();"]
    assert diff.text == "".join(lines)
    assert [e.text for e in having(found, "span", "added")] == ["+new<int>();"]
    assert "1 lines in, 1 out" in rungs["rung-2"].text
    cells = [e.text for e in found if e.tag in ("th", "td") and "panel" in e.inside]
    for name, before, after in (
        ("registers a thread", "100", "200"),
        ("bank conflicts", "4,096", "0"),
        ("wavefronts / needed", "8.00", "1.00"),
        ("LDS", "9", "0"),
        ("all", "14", "5"),
    ):
        place = len(cells) - 1 - cells[::-1].index(name)  # the second rung's
        assert cells[place : place + 3] == [name, before, after]


def test_a_loss_is_hollow_and_other_peers_come_from_a_grid_of_the_same_shapes(
    tmp_path: Path,
) -> None:
    measured = asdict(made_up_results())
    for row in measured["rows"]:
        row["tflops"] /= 3 if row["contender"] == "swizzle" else 1
    (tmp_path / "a.json").write_text(json.dumps(measured))
    rows = []
    for batch, seq in ((2, 512), (1, 1024)):
        flop = 4 * batch * 16 * seq**2 * 128
        point = grid_row("c", (128, False, seq), 1.0, {"fa3": flop / 200e9})
        rows.append({**asdict(point), "batch": batch, "heads": 16})
    grid = {**made_up_grid(), "dtype": "FP16", "rows": rows}
    (tmp_path / "b.json").write_text(json.dumps(grid))
    stored = read_folder(tmp_path)
    body = ladder_section(stored, forward_ladder(RUNGS)).body
    assert body is not None
    (lost,) = having(parse(body), "rect", "bar lost")
    assert lost.number("width") == pytest.approx(
        100 * (BASE - SWIZZLE / 3) / (1.04 * 200), abs=0.01
    )
    peers, file = marks(made_up_results(), compare(made_up_results()), stored, GRID)
    assert [(peer.name, peer.tflops) for peer in peers] == [
        ("FA2", FA2),
        ("FA3", pytest.approx(200)),
    ]
    assert file is not None
    assert file.path.name == "b.json"


def test_results_of_another_ladder_get_no_source_of_this_one(tmp_path: Path) -> None:
    renamed = [RUNGS[0], RUNGS[1].__class__(2, "other", *list(vars(RUNGS[1]).values())[2:])]
    body = ladder_section(stored_results(tmp_path), forward_ladder(renamed)).body
    assert body is not None
    found = parse(body)
    assert len(having(found, "div", "rung other")) == 1
    assert having(found, "pre", "diff") == []


def test_the_ladder_of_gradients_has_its_own_rungs_kernels_and_counters(tmp_path: Path) -> None:
    section = ladder_section(stored_results(tmp_path), backward_ladder(BACKWARD_RUNGS))
    assert section.body is not None
    assert (section.anchor, section.sources) == ("backward_ladder", ("j.json", "k.json"))
    assert "FP16, 16 heads of 128, backward, no mask, Some GPU." in section.body
    found = parse(section.body)
    assert [e.text for e in having(found, "span", "speed")] == ["TFLOP/s", "60", "165"]
    rungs = {e.attributes["id"]: e for e in having(found, "details") if "id" in e.attributes}
    assert list(rungs) == ["backward-rung-1", "backward-rung-2"]
    lines = [e.text for e in having(found, "tr")]
    assert {"prepare642560", "main, 4 times2,048384115,712"} <= set(lines)
    assert "Launched for a <shape>" in [e.text for e in having(found, "caption")]
    assert "registers a thread168168" in lines


def test_peers_of_gradients_come_from_a_grid_of_gradients(tmp_path: Path) -> None:
    rows = []
    for batch, seq in ((2, 512), (1, 1024)):
        flop = 2.5 * 4 * batch * 16 * seq**2 * 128
        point = grid_row("c", (128, False, seq), 1.0, {"fa3": flop / 200e9})
        rows.append({**asdict(point), "batch": batch, "heads": 16, "measured": "BACKWARD"})
    grid = {**made_up_grid(), "dtype": "FP16", "rows": rows}
    (tmp_path / "b.json").write_text(json.dumps(grid))
    measured = backward_results()
    peers, _ = marks(measured, compare(measured), read_folder(tmp_path), GRADIENTS)
    assert [(peer.name, peer.tflops) for peer in peers] == [
        ("FA2", FA2),
        ("FA3", pytest.approx(200)),
    ]
