# SPDX-License-Identifier: Apache-2.0
"""Folders of kernels: what loads, what is refused and for what, what does not compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.corpus import main

GOOD = "__global__ void good(int* out) { *out = 1; }\n"
RECURSIVE = """__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__global__ void again(int* out) { *out = fib(*out); }
"""


def test_refusals_are_told_by_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "a.cu").write_text(GOOD + RECURSIVE)
    (tmp_path / "one" / "deep" / "b.cu").write_text(GOOD)
    (tmp_path / "bad.cu").write_text("__global__ void bad() { nothing(); }\n")
    assert main([str(tmp_path / "one"), str(tmp_path / "bad.cu"), "--processes", "1"]) == 1
    said = capsys.readouterr().out
    assert "one: 2 of 2 files compile; 2 of 3 entry points load (66.7 %)" in said
    assert "  1 refused: _Z3fibi calls itself, and recursion is not emulated" in said
    assert 'bad.cu(1): error: identifier "nothing" is undefined' in said
    assert "all: 2 of 3 files compile; 2 of 3 entry points load" in said
