# SPDX-License-Identifier: Apache-2.0
"""Peers, roofline, landscape and counters: positions encode the values."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_run import GridRow
from flash_attention_workbench.bench.stored import Stored
from flash_attention_workbench.report.rungs import backward_ladder, forward_ladder
from flash_attention_workbench.report.section import Section
from flash_attention_workbench.report.sections.counters import counters_section
from flash_attention_workbench.report.sections.environment import environment_section
from flash_attention_workbench.report.sections.landscape import landscape_section
from flash_attention_workbench.report.sections.others import others_section
from flash_attention_workbench.report.sections.peers import peers_section, speeds
from flash_attention_workbench.report.sections.roofline import intensity, roofline_section
from flash_attention_workbench.report.sections.shapes import shapes_section
from tests.workbench.bench.made_up_grid import grid_row
from tests.workbench.report.made_up import (
    BACKWARD_RUNGS,
    RUNGS,
    decode_grid,
    selected_grid,
    stored_results,
)
from tests.workbench.report.parse import Element, having, parse


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Stored, ...]:
    return stored_results(tmp_path)


def body(section: Section) -> list[Element]:
    assert section.body is not None
    return parse(section.body)


def rows() -> list[GridRow]:
    return [GridRow(**row) for row in selected_grid()["rows"]]


def decode_row() -> GridRow:
    return grid_rows(decode_grid())[0]


def test_heights_of_the_curves_are_speeds_on_one_scale(stored: tuple[Stored, ...]) -> None:
    found = body(peers_section(stored))
    spots = having(found, "circle", "spot ours")
    heights = {round(spot.number("cy"), 1) for spot in spots}
    # the axis goes from 168 at 0 TFLOP/s to 16 at 1000, the fastest of all charts
    assert heights == {round(168 - 152 * speed / 1000, 1) for speed in (800, 500, 300)}
    lengths = [spot.number("cx") for spot in spots[:2]]
    assert lengths == [9, 79]  # 512 and 1024, the ends of the first chart
    tips = [e.attributes["data-tip"] for e in having(found, "circle", "touch")]
    assert "FA3, 512 rows: 400 TFLOP/s" in tips
    assert "ours, 1,024 rows: 500 TFLOP/s" in tips


def test_multiples_are_coloured_by_who_is_ahead(stored: tuple[Stored, ...]) -> None:
    found = body(peers_section(stored))
    (ahead,) = having(found, "td", "number ahead")
    (behind,) = having(found, "td", "number behind")
    assert (ahead.text, behind.text) == ("2.00", "0.50")
    captions = [e.text for e in having(found, "caption")]
    assert any("faster of FA3 and cuDNN. Geometric mean 1.000" in text for text in captions)


def test_a_wrong_kernel_has_no_speed() -> None:
    wrong = grid_row("c", (64, False, 512), 1.0, {"fa3": 1.0}, ok=False)
    assert set(speeds([wrong])) == {"fa3"}


def test_intensity_counts_every_byte_once() -> None:
    full, _, causal = rows()
    assert intensity(full) == 512 / 2
    assert intensity(causal) == 2048 / 4


def test_points_lie_under_the_roof_where_their_numbers_are(stored: tuple[Stored, ...]) -> None:
    found = body(roofline_section(stored))
    points = [e for e in having(found, "circle") if "data-tip" in e.attributes]
    measured = [*rows(), decode_row()]
    # from 280 pixels at the memory roof's lower end to 18 at 1.2 times the matrix product
    low = min(4.0 * intensity(decode_row()) / 2, decode_row().tflops)
    heights = [280 - 262 * log(row.tflops / low) / log(1200 / low) for row in measured]
    assert [point.number("cy") for point in points] == pytest.approx(heights, abs=0.06)
    # intensities 256, 512, 512: one doubling apart
    places = [point.number("cx") for point in points]
    assert places[1] == places[2]
    memory, matrix = having(found, "line", "roof")
    top = 280 - 262 * log(1000 / low) / log(1200 / low)
    assert matrix.number("y1") == matrix.number("y2") == pytest.approx(top, abs=0.06)
    # they meet at 1000 / 4 FLOP a byte, just left of the first point
    assert (memory.number("x2"), memory.number("y2")) == (matrix.number("x1"), matrix.number("y1"))
    doubling = places[1] - places[0]
    assert 0 < places[0] - matrix.number("x1") < 0.05 * doubling
    # twice the intensity is twice the memory's speed: the roof is a straight line here
    rise = memory.number("y1") - memory.number("y2")
    run = (memory.number("x2") - memory.number("x1")) / doubling
    assert rise / run == pytest.approx(262 * log(2) / log(1200 / low), rel=1e-2)
    assert [p.attributes["class"] for p in points] == [
        "point low",
        "point low",
        "point middle hollow",
        "point low",
    ]


def test_intensity_of_decoding_is_twice_the_heads_of_a_group() -> None:
    # 4 x 8 heads x 4096 x 64 FLOP; K and V of 2 heads, and one row of Q and O
    byte_count = 2 * 2 * 64 * (2 * 4096 + 8)
    assert intensity(decode_row()) == 4 * 8 * 4096 * 64 / byte_count


def test_shapes_are_placed_by_the_bytes_they_move(stored: tuple[Stored, ...]) -> None:
    section = shapes_section(stored)
    found = body(section)
    assert section.sources == ("f.json",)
    spots = {e.attributes["data-tip"]: e.number("cx") for e in having(found, "circle")}
    ends = (1, 97)  # 0 and 3,000 GB/s
    for name, speed in (("ours", 3000), ("FA3", 1500), ("FA2", 1000)):
        at = ends[0] + (ends[1] - ends[0]) * speed / 3000
        assert spots[f"{name}: {speed:,} GB/s of K and V"] == pytest.approx(at, abs=0.01)
    assert len(having(found, "circle", "spot ours")) == 1  # the wrong one has no speed
    assert [e.text for e in having(found, "span", "times")] == ["times", "2.00", "wrong"]
    captions = [e.text for e in having(found, "figcaption")]
    assert captions == ["Decoding: few queries, a long KV cache: 2.00 times in geometric mean"]
    assert "4,000" in having(found, "table")[0].text  # the copy's speed


def test_a_file_without_a_chart_is_shown_as_it_is(stored: tuple[Stored, ...]) -> None:
    section = others_section(stored, [peers_section(stored), shapes_section(stored)])
    assert section is not None
    assert section.sources == (
        *("a.json", "c.json", "d.json", "e.jsonl", "g.json", "h.txt", "i.json", "j.json", "k.json"),
    )
    found = body(section)
    lines = [e.text for e in having(found, "tr")]
    assert "costforward: 1.5; none: " in lines
    assert {"caseokncu: sectorslengths", "<add>True20,4801, 2"} <= set(lines)
    assert [e.text for e in having(found, "pre")] == ["$ pytest\n7 passed <in> 1 s\n"]
    assert "g.json (1 rows)" in [e.text for e in having(found, "summary")]
    assert others_section(stored[:0], []) is None


def test_a_trial_is_placed_by_its_part_of_the_best(stored: tuple[Stored, ...]) -> None:
    found = body(landscape_section(stored))
    dots = {e.attributes["data-tip"]: e for e in having(found, "circle", "trial")}
    assert set(dots) == {"80.0 %, 5 ms: first", "100.0 %, 4 ms: second <b>"}
    # the axis begins at 80 %
    assert dots["80.0 %, 5 ms: first"].number("cx") == 1.5
    assert dots["100.0 %, 4 ms: second <b>"].number("cx") == 97.5


def test_columns_are_as_high_as_their_counters(stored: tuple[Stored, ...]) -> None:
    found = body(counters_section(stored, forward_ladder(RUNGS)))
    columns = [e for e in having(found, "rect") if e.attributes["class"].startswith("bar")]
    tallest = 112 / 1.05
    heights = [column.number("height") for column in columns]
    expected = [(0.5, 1), (1, 1 / 8), (1, 1), (0.5, 1)]  # instructions, wavefronts, sectors, ...
    assert heights == pytest.approx([tallest * part for pair in expected for part in pair], abs=0.1)
    assert [c.attributes["class"] for c in columns[:2]] == ["bar", "bar newer"]
    links = [e.attributes["href"] for e in having(found, "a")]
    assert links[:2] == ["#rung-1", "#rung-2"]


def test_counters_of_gradients_lead_to_their_rungs(stored: tuple[Stored, ...]) -> None:
    section = counters_section(stored, backward_ladder(BACKWARD_RUNGS))
    assert (section.anchor, section.sources) == ("backward_counters", ("k.json",))
    links = [e.attributes["href"] for e in having(body(section), "a")]
    assert links[:2] == ["#backward-rung-1", "#backward-rung-2"]


def test_every_file_says_where_it_is_from_and_where_it_is_shown(stored: tuple[Stored, ...]) -> None:
    shown = [peers_section(stored), counters_section(stored, forward_ladder(RUNGS))]
    found = body(environment_section(stored, shown))
    lines = [e.text for e in having(found, "tr")]
    assert len(lines) == 1 + len(stored)
    assert (
        "b.jsonBeside the peersSome GPU580.1 (CUDA 13.0)13.02.13.00123456789ab2026-01-31" in lines
    )
    assert any(line.startswith("a.jsonnot on this page") for line in lines)
