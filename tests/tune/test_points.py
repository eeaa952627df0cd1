# SPDX-License-Identifier: Apache-2.0
"""What a caller names becomes problems, or an error that says what to name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flash_attention.bench.grid import Point
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.tune.points import problems_of

POINT = {"d_head": 128, "causal": True, "seq_len": 4096, "batch": 4, "heads": 16}


def test_grids_by_name() -> None:
    assert len(problems_of("fa3")) == 36
    assert {p.dtype for p in problems_of("fa3")} == {DType.BF16}
    assert {p.dtype for p in problems_of("seed")} == {DType.FP16}
    some = problems_of("fa3", d_heads=[64], masks=[True], dtype=DType.FP16)
    assert {(p.d_head, p.causal, p.dtype) for p in some} == {(64, True, DType.FP16)}
    assert len(some) == 6


def test_points_of_a_file_with_keys_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps([POINT, {**POINT, "heads_k": 4, "seq_k": 8192, "d_head": 64}]))
    plain, grouped = problems_of(path)
    assert (plain.seq_q, plain.seq_k, plain.heads, plain.heads_k) == (4096, 4096, 16, 16)
    assert (grouped.seq_q, grouped.seq_k, grouped.heads, grouped.heads_k) == (4096, 8192, 16, 4)
    assert problems_of(str(path), d_heads=[64]) == [grouped]
    assert problems_of([Point(**POINT)]) == [plain]  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="no point to tune at these head dimensions"):
        problems_of(path, d_heads=[256])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "is not a list of points; a point is"),
        ([3], "point 1 of .* is 3; a point is"),
        ([{**POINT, "length": 3}], "unknown field 'length'"),
        ([{"d_head": 128}], "causal is missing"),
        ([POINT, {**POINT, "causal": 1}], "point 2 of .*: causal is 1; use true or false"),
        ([{**POINT, "batch": 0}], "batch is 0; use an integer from 1"),
        ([{**POINT, "heads_k": 3}], "heads is 16, no multiple of heads_k, which is 3"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UnsupportedError, match=said):
        problems_of(path)


def test_an_unknown_grid_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="grids are fa3, seed; did you mean 'seed'"):
        problems_of("sead")
