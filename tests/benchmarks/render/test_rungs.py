# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/ladder.md: what changes from a rung to the next, and where it is from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.render import documents
from benchmarks.render.blocks import begin, end, marked_block
from benchmarks.render.rungs import (
    config_diff,
    header_changes,
    new_variants,
    render_rungs,
)
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention_workbench.bench.comparison import FA2, opcode_changes
from flash_attention_workbench.bench.results import save
from flash_attention_workbench.bench.stored import BACKWARD_EMULATED, Stored, read_folder
from tests.workbench.bench.made_up import SHAPES, made_up_results, row

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
NAMES = ["rungs", *(f"rung-{rung.number}" for rung in get_ladder())]
EMPTY = "\n".join(f"{begin(name)}\n{end(name)}" for name in NAMES)


def stored(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return record


@pytest.fixture(scope="module")
def rendered() -> str:
    return render_rungs(EMPTY, read_folder(RESULTS))


def test_opcodes_that_change_most_go_first() -> None:
    before, after = {"A": 5, "B": 1, "C": 2}, {"A": 5, "B": 4, "D": 9}
    assert opcode_changes(before, after) == {"D": 9, "B": 3, "C": -2}
    assert list(opcode_changes(before, after)) == ["D", "B", "C"]


def test_the_changed_line_of_the_config_the_variant_it_binds_and_its_header() -> None:
    base, swizzle, *_ = get_ladder()
    assert config_diff(base, swizzle) == [
        "-  using Layout = fa::sm80::layout::RowMajor;",
        "+  using Layout = fa::sm80::layout::XorSwizzle;",
    ]
    assert new_variants(base, swizzle) == {"sm80::layout::XorSwizzle": "fa/sm80/tile.cuh"}
    eager = get_ladder()[2]
    assert header_changes(swizzle, eager) == (
        ["fa/sm80/schedule/eager.cuh"],
        ["fa/sm80/schedule/lazy.cuh"],
    )


def test_a_block_has_the_numbers_of_both_rungs(rendered: str) -> None:
    block = marked_block(rendered, "rung-2")
    before, here = stored("emulator_ladder")["rows"][:2]
    opcodes = [sum(row["opcodes"].values()) for row in (before, here)]
    change = 100 * (opcodes[1] / opcodes[0] - 1)
    assert f"| SASS instructions | {opcodes[0]:,} | {opcodes[1]:,} | {change:+.1f} % |" in block
    registers = [row["registers"] for row in (before, here)]
    difference = registers[1] - registers[0]
    assert f"| registers per thread | {registers[0]} | {registers[1]} | {difference:+d} |" in block
    pipes = [row["tensor pipe %"] for row in stored("h200_ladder_profile")["rows"][:2]]
    row = f"| tensor pipe, % of cycles | {pipes[0]:.1f} | {pipes[1]:.1f} | "
    assert row + f"{pipes[1] - pipes[0]:+.1f} |" in block
    rows = stored("h200_ladder")["rows"]
    speed = {(r["number"], r["seq_len"]): r["tflops"] for r in rows}
    assert f"512 {100 * (speed[2, 512] / speed[1, 512] - 1):+.1f} %" in block
    harmonic = [6 / sum(1 / v for (n, _), v in speed.items() if n == rung) for rung in (1, 2)]
    assert f"| TFLOP/s | {harmonic[0]:.1f} | {harmonic[1]:.1f} |" in block


def test_the_first_rung_is_compared_with_nothing(rendered: str) -> None:
    block = marked_block(rendered, "rung-1")
    assert "|  | 1 base |\n| --- | ---: |" in block
    assert "diff" not in block
    assert "The most frequent instructions: " in block


def test_a_rung_without_new_machine_code_says_so(rendered: str) -> None:
    assert "byte for byte" in marked_block(rendered, "rung-5")
    assert "byte for byte" not in marked_block(rendered, "rung-6")


def test_links_lead_to_headers(rendered: str) -> None:
    links = {part.partition(")")[0] for part in rendered.split("](")[1:]}
    assert len(links) > 12
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_results_that_are_missing_are_named(tmp_path: Path) -> None:
    files = read_folder(RESULTS)
    some = [one for one in files if one.path.name != "emulator_ladder.json"]
    with pytest.raises(UnsupportedError, match="missing: emulated"):
        render_rungs(EMPTY, some)
    record = stored("emulator_ladder")
    short = Stored(tmp_path / "e.json", "emulated", {**record, "rows": record["rows"][:-1]})
    with pytest.raises(UnsupportedError, match=r"emulated results lack rung 29; CONTRIBUTING\.md"):
        render_rungs(EMPTY, [*some, short])


BACKWARD_NAMES = ["rungs", *(f"rung-{rung.number}" for rung in get_ladder(pass_=Pass.BACKWARD))]
EMPTY_BACKWARD = "\n".join(f"{begin(name)}\n{end(name)}" for name in BACKWARD_NAMES)


def test_backward_rungs_without_a_measurement_have_code_and_counters() -> None:
    emulated = [one for one in read_folder(RESULTS) if one.kind == BACKWARD_EMULATED]
    text = render_rungs(EMPTY_BACKWARD, emulated, Pass.BACKWARD)
    block = marked_block(text, "rung-2")
    before, here = stored("emulator_backward_ladder")["rows"][:2]
    opcodes = [sum(row["opcodes"].values()) for row in (before, here)]
    assert f"| SASS instructions | {opcodes[0]:,} | {opcodes[1]:,} |" in block
    assert "+  using Layout = fa::sm80::layout::XorSwizzle;" in block
    assert "TFLOP/s" not in text
    assert "Change of speed" not in text
    assert "ladder show 11 --pass backward" in marked_block(text, "rung-11")
    with pytest.raises(UnsupportedError, match="missing: backward emulated"):
        render_rungs(EMPTY_BACKWARD, [], Pass.BACKWARD)


def test_backward_rungs_have_their_speeds_when_they_are_measured(tmp_path: Path) -> None:
    rungs = get_ladder(pass_=Pass.BACKWARD)
    below = next(rung.number for rung in rungs if rung.causal) - 1
    names: dict[int | None, str] = {rung.number: rung.name for rung in rungs}
    names[None] = FA2
    rows = [
        replace(row(names[number], number, shape, 100.0 + (number or 0)), causal=causal)
        for shape in SHAPES
        for causal, numbers in (
            (False, [None, *range(1, below + 1)]),
            (True, [None, *range(below, len(rungs) + 1)]),
        )
        for number in numbers
    ]
    measured = replace(made_up_results(), rows=tuple(rows), pass_="backward")
    save(measured, tmp_path / "ladder.json")
    emulated = [one for one in read_folder(RESULTS) if one.kind == BACKWARD_EMULATED]
    files = [*emulated, *read_folder(tmp_path)]
    text = render_rungs(EMPTY_BACKWARD, files, Pass.BACKWARD)
    assert "| TFLOP/s | 101.0 | 102.0 | +1.0 % |" in marked_block(text, "rung-2")
    assert "512 +1.0 %, 1024 +1.0 %" in marked_block(text, "rung-2")
    last = len(rungs)
    assert f"| TFLOP/s | {99.0 + last:.1f} | {100.0 + last:.1f} |" in marked_block(
        text, f"rung-{last}"
    )
    block = documents.ladder_block(measured)
    assert block.startswith(begin(documents.BACKWARD_LADDER))
    assert "heads of 128; backward, no mask unless" in block
    assert "(backward_ladder.png)" in block


def test_backward_speeds_go_into_their_own_block_and_picture(tmp_path: Path) -> None:
    document, file = tmp_path / "d.md", tmp_path / "r.json"
    name = documents.BACKWARD_LADDER
    document.write_text(f"{begin(name)}\n{end(name)}\n")
    measured = replace(made_up_results(), pass_="backward")
    save(measured, file)
    documents.main([str(document), str(file)])
    assert document.read_text() == f"{documents.ladder_block(measured)}\n"
    assert (tmp_path / documents.BACKWARD_PLOT).read_bytes().startswith(b"\x89PNG")
