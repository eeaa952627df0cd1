# SPDX-License-Identifier: Apache-2.0
"""`flash-attention report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention_workbench.commands.report import SHIPPED, rung_texts
from tests.workbench.commands.invoke import invoke, refuse
from tests.workbench.report.made_up import timings, write_folder

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow  # left out of `make quick`


def test_a_page_is_written_and_what_is_missing_is_said(tmp_path: Path) -> None:
    folder, page = write_folder(tmp_path / "results"), tmp_path / "new" / "r.html"
    (folder / "e.jsonl").unlink()
    arguments = ("report", "--results", str(folder), "--out", str(page))
    printed = " ".join(invoke(*arguments).split())
    assert "left out: No timings of several configs" in printed
    assert page.read_text().startswith("<!doctype html>")
    store = tmp_path / "tuner.jsonl"
    store.write_text("".join(json.dumps(line) + "\n" for line in timings()))
    assert "left out" not in invoke(*arguments, "--tuner", str(store))
    assert "second &lt;b&gt;" in page.read_text()


def test_a_folder_without_results_writes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    said = refuse("report", "--results", str(tmp_path / "none"), "--out", str(page))
    assert "is no folder" in said
    assert not page.exists()


def test_the_results_of_the_package_are_shown_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = " ".join(invoke("report").split())
    assert "left out" not in printed
    assert printed.startswith(f"results: {SHIPPED} report: report.html")
    shipped = (tmp_path / "report.html").read_text()
    invoke("report", "--results", str(ROOT / "results"), "--out", "same.html")
    assert (tmp_path / "same.html").read_text() == shipped
    write_folder(tmp_path / "results")
    assert invoke("report").startswith("results: results\n")
    assert "second &lt;b&gt;" in (tmp_path / "report.html").read_text()


def test_every_rung_but_the_first_has_a_diff() -> None:
    texts = rung_texts()
    assert [text.number for text in texts] == [rung.number for rung in get_ladder()]
    assert [text.number for text in texts if not text.diff] == [1]
    assert texts[1].change == "swizzled: False -> True"
    assert "+struct XorSwizzle" in texts[1].diff


def test_rungs_of_gradients_name_their_kernels() -> None:
    texts = rung_texts(Pass.BACKWARD)
    assert [text.number for text in texts] == [r.number for r in get_ladder(pass_=Pass.BACKWARD)]
    assert [text.number for text in texts if not text.diff] == [1]
    for text in texts[:-1]:
        assert [launch.kernel for launch in text.launches] == ["prepare", "main", "convert"]
    assert [launch.kernel for launch in texts[-1].launches] == ["prepare", "main"]
    main = texts[10].launches[1]
    assert (main.times, main.ctas, main.threads) == (1, 16 * 16 * 4096 // 128, 384)
    assert main.shared_bytes == get_ladder(pass_=Pass.BACKWARD)[10].config.smem_bytes()
    assert texts[0].launched_for == (
        "FP16 d 128 full, 16 x 4096 rows x 16 heads, backward, on 132 multiprocessors"
    )
    assert [launch.kernel for launch in rung_texts()[0].launches] == ["main"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    said = refuse("report", "--results", str(write_folder(tmp_path)), "--out", str(tmp_path))
    assert said == f"error: cannot write {tmp_path}: Is a directory; choose another place"
