# SPDX-License-Identifier: Apache-2.0
"""The drawings of docs/primer.md show what kernels do, fit their frames, and are current."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.render.drawings import DOCUMENT, DRAWINGS, FOLDER, Drawing
from flash_attention_workbench.bench.comparison import compare
from flash_attention_workbench.bench.results import load
from tests.workbench.commands.invoke import invoke

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / DOCUMENT).read_text()
NAMED = {drawing.name: drawing for drawing in DRAWINGS}


def words_of(name: str) -> list[str]:
    return re.findall(r"<text[^>]*>(.*?)</text>", NAMED[name].file)


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_drawing_is_current_whole_and_told_in_words(drawing: Drawing) -> None:
    assert (ROOT / FOLDER / f"{drawing.name}.svg").read_text() == drawing.file
    assert drawing.markdown in TEXT
    root = ElementTree.fromstring(drawing.file)
    assert root.attrib["aria-label"] == drawing.told
    canvas = drawing.draw()
    for left, top, right, bottom in canvas.ends:
        assert 0 <= left <= right <= canvas.width
        assert 0 <= top <= bottom <= canvas.height


def test_every_file_is_drawn() -> None:
    assert {path.stem for path in (ROOT / FOLDER).iterdir()} == set(NAMED)


def test_the_online_softmax_ends_where_the_whole_softmax_does() -> None:
    words = words_of("online_softmax")
    (whole,) = re.findall(r"at once give (\d\.\d+)", words[-1])
    assert words[-2] == whole == "1.9228"


def test_every_lane_holds_four_elements() -> None:
    cells = [word for word in words_of("fragments") if re.fullmatch(r"\d+\.[0-3]", word)]
    assert sorted(cells) == sorted(f"{lane}.{e}" for lane in range(32) for e in range(4))


def test_the_swizzle_spreads_a_chunk_over_all_banks() -> None:
    words = words_of("swizzle")
    assert [word for word in words if word.startswith("chunk 0")] == [
        "chunk 0 of eight rows: 1 of 8 bank groups,",
        "chunk 0 of eight rows: 8 of 8 bank groups,",
    ]


def test_the_code_and_the_numbers_of_rung_1_are_its_own() -> None:
    rung = TEXT.partition("\n## Rung 1\n")[2]
    shown = invoke("ladder", "show", "1")
    programs = re.findall(r"```c\+\+\n(.*?)```", rung, re.S)
    assert len(programs) == 3
    assert [program for program in programs if program not in shown] == []
    for verb in re.findall(r"\*\*`(\w+)`\*\*", rung):
        assert re.search(rf"__device__ void {verb}\(", shown), verb
    measured = compare(load(ROOT / "results" / "h200_ladder.json"))
    share = next(entry.mean_of_fa2 for entry in measured.entries if entry.number == 1)
    assert f"reaches {100 * share:.0f} % of the speed" in rung
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    (ways,) = re.findall(r"counts ([\d.]+) times as many wavefronts", rung)
    assert f"| emulated: wavefronts / needed | {ways} |" in ladder
