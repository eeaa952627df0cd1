# SPDX-License-Identifier: Apache-2.0
"""The page as a whole: complete, escaped, alone, and the same every time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.stored import read_folder
from flash_attention_workbench.report import RungText, render_page
from tests.gate import EXHAUSTIVE
from tests.workbench.report.made_up import BACKWARD_RUNGS, RUNGS, stored_results, write_folder
from tests.workbench.report.parse import having, parse

RESULTS = Path(__file__).resolve().parents[3] / "results"
SECTIONS = [
    *("ladder", "peers", "gradients", "shapes", "roofline", "landscape", "counters"),
    *("backward_ladder", "backward_counters", "others", "environment"),
]


def test_every_section_is_there_and_in_the_contents(tmp_path: Path) -> None:
    page = render_page(stored_results(tmp_path), RUNGS, BACKWARD_RUNGS)
    found = parse(page.text)
    assert page.missing == ()
    assert [e.attributes["id"] for e in having(found, "h2")] == SECTIONS
    contents = page.text.partition("<nav")[2].partition("</nav>")[0]
    assert re.findall(r'href="#(\w+)"', contents) == SECTIONS


def test_what_was_not_measured_is_said_and_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for name in ("a", "c", "d", "f", "i", "j", "k"):
        (tmp_path / f"{name}.json").unlink()
    (tmp_path / "e.jsonl").unlink()
    page = render_page(read_folder(tmp_path), RUNGS, BACKWARD_RUNGS)
    sentences = [e.text for e in having(parse(page.text), "p", "missing")]
    assert tuple(sentences) == page.missing
    assert [sentence.partition(":")[0] for sentence in sentences] == [
        "The ladder was not measured",
        "No gradients were measured",
        "No shapes of models were measured",
        "No roofline",
        "No timings of several configs at one point",
        "No counters",
        "The ladder of gradients was not measured",
        "No counters",
    ]


def test_rungs_that_were_only_emulated_are_shown_without_speeds(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "j.json").unlink()
    page = render_page(read_folder(tmp_path), RUNGS, BACKWARD_RUNGS)
    (missing,) = page.missing
    assert missing == (
        "The ladder of gradients was not measured: `flash-attention ladder run --pass backward"
        " --json FILE` on a GPU does."
    )
    found = parse(page.text)
    assert [e.text for e in having(found, "p", "missing")] == [missing]
    rungs = {e.attributes["id"]: e for e in having(found, "details") if "id" in e.attributes}
    assert list(rungs) == ["rung-1", "rung-2", "backward-rung-1", "backward-rung-2"]
    for part in ("Loads run ahead. ", "stages: 1 -> 2", "registers a thread"):
        assert part in rungs["backward-rung-2"].text
    assert [e.text for e in having(found, "span", "change")] == ["", "stages: 1 -> 2"]


def test_everything_that_is_stored_is_on_the_page(tmp_path: Path) -> None:
    for folder in (RESULTS, write_folder(tmp_path)):
        stored = read_folder(folder)
        page = render_page(stored, RUNGS, BACKWARD_RUNGS)
        assert {one.path.name for one in stored} == {path.name for path in folder.iterdir()}
        assert "not on this page" not in page.text


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    first = render_page(stored_results(tmp_path / "one"), RUNGS, BACKWARD_RUNGS)
    assert render_page(stored_results(tmp_path / "two"), RUNGS, BACKWARD_RUNGS) == first


def test_nothing_in_a_results_file_becomes_markup(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    for path in folder.iterdir():
        evil = path.read_text().replace("Some GPU", "<script>alert(1)</script>")
        path.write_text(evil.replace('"second <b>"', '"\\"><img src=x>"'))
    rungs = [RungText(1, "base", "<u>idea</u>", "", "", "sm_80"), RUNGS[1]]
    page = render_page(read_folder(folder), rungs, BACKWARD_RUNGS)
    found = parse(page.text)
    assert having(found, "img") == having(found, "u") == []
    assert len(having(found, "script")) == 1
    assert "&lt;script&gt;alert(1)" in page.text


def test_the_page_names_no_other_file(tmp_path: Path) -> None:
    text = render_page(stored_results(tmp_path), RUNGS, BACKWARD_RUNGS).text
    found = parse(text)
    assert {e.attributes["href"][0] for e in having(found, "a")} == {"#"}
    assert [e for e in found if "src" in e.attributes or e.tag in ("link", "img", "iframe")] == []
    assert re.findall(r"url\(|@import|https?://", text) == []
    assert "default-src 'none'" in having(found, "meta")[3].attributes["content"]


def test_every_picture_has_a_label_and_every_chart_a_table(tmp_path: Path) -> None:
    found = parse(render_page(stored_results(tmp_path), RUNGS, BACKWARD_RUNGS).text)
    for picture in having(found, "svg"):
        assert picture.attributes.get("aria-label") or picture.attributes["aria-hidden"] == "true"
    folds = [e.text for e in having(found, "details", "fold")]
    assert sum(text.startswith("The numbers as a table") for text in folds) == 10


WRONG: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e308,
    inf,
    nan,
    1 << 62,
    "",
    "x",
    [],
    {},
    [{}],
    {"a": [1]},
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object inside of a value, with every index or name in it."""
    for at in value if isinstance(value, dict) else range(len(value)):
        yield value, at
        if isinstance(value[at], dict | list):
            yield from places(value[at])


@pytest.mark.parametrize("step", [len(WRONG), pytest.param(1, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("name", [*(f"{stem}.json" for stem in "abcdfijk"), "e.jsonl"])
def test_whatever_is_wrong_in_a_file_it_is_named_or_does_not_matter(
    tmp_path: Path, name: str, step: int
) -> None:
    """One value after the other is replaced by others, in turn."""
    path = write_folder(tmp_path) / name
    profile = [{"rung": n, "name": "base", "kcycles": 5.0} for n in (1, 2)]
    (tmp_path / "f.json").write_text(json.dumps({"rows": profile}))
    lines = path.suffix == ".jsonl"
    text = path.read_text()
    record = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    said: list[str] = []
    for number, (holder, at) in enumerate(places(record)):
        kept = holder[at]
        for wrong in WRONG[number % step :: step]:
            holder[at] = wrong
            path.write_text("\n".join(map(json.dumps, record)) if lines else json.dumps(record))
            try:
                render_page(read_folder(tmp_path), RUNGS, BACKWARD_RUNGS).text.encode()
            except UnsupportedError as error:
                said.append(str(error))
        holder[at] = kept
    assert said
    assert [one for one in said if name not in one] == []
