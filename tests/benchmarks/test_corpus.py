# SPDX-License-Identifier: Apache-2.0
"""Folders of kernels: what loads, what is refused and for what, what does not compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.corpus import main
from benchmarks.render.corpus import corpus_block

GOOD = "__global__ void good(int* out) { *out = 1; }\n"
RECURSIVE = """__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__global__ void again(int* out) { *out = fib(*out); }
"""


def test_refusals_are_told_by_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "a.cu").write_text(GOOD + RECURSIVE)
    (tmp_path / "one" / "deep" / "b.cu").write_text(GOOD)
    (tmp_path / "bad.cu").write_text("__global__ void bad() { nothing(); }\n")
    kept = tmp_path / "kept.json"
    before = {"repository": "one", "run": 3, "right": 3, "mistakes": []}
    kept.write_text(json.dumps({"repositories": [before]}))
    paths = [str(tmp_path / "one"), str(tmp_path / "bad.cu")]
    assert main([*paths, "--processes", "1", "--json", str(kept)]) == 1
    said = capsys.readouterr().out
    assert "one: 2 of 2 files compile; 2 of 3 entry points load (66.7 %)" in said
    assert "  1 refused: _Z3fibi calls itself, and recursion is not emulated" in said
    assert 'bad.cu(1): error: identifier "nothing" is undefined' in said
    assert "all: 2 of 3 files compile; 2 of 3 entry points load" in said
    one, bad = json.loads(kept.read_text())["repositories"]
    (refused,) = one.pop("refusals").items()
    assert refused[0].startswith("_Z3fibi calls itself, and recursion is not emulated")
    assert (refused[1], one) == (1, {**before, "files": 2, "broken": 0, "entries": 3})
    assert (bad["repository"], bad["broken"], bad["entries"], bad["run"]) == ("bad.cu", 1, 0, 0)


def test_a_line_for_each_repository_and_one_for_all() -> None:
    mistake = {"kernel": "sum", "what": "line 3: no barrier"}
    one = {"repository": "one", "files": 2, "broken": 0, "entries": 3, "refusals": {"textures": 1}}
    two = {"repository": "two", "files": 4, "broken": 1, "entries": 5, "refusals": {}}
    runs = ({"run": 2, "right": 2, "mistakes": [mistake]}, {"run": 1, "right": 0, "mistakes": []})
    lines = corpus_block({"repositories": [one | runs[0], two | runs[1]]}).splitlines()
    assert "| one | 2 | 3 | 2 (67 %) | 2 | 2 | 1 |" in lines
    assert "| **all** | 5 of 6 | 8 | 7 (88 %) | 3 | 2 | 1 |" in lines
    assert "| textures | 1 |" in lines
    assert "| one | `sum` | line 3: no barrier |" in lines
