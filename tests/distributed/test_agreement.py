# SPDX-License-Identifier: Apache-2.0
"""Ranks that were asked for different things all raise, and say which ranks differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.distributed.agreement import REFUSED, _differences
from tests.distributed.disagreements import CHANGES
from tests.distributed.ranks import run_ranks


def test_the_ranks_that_differ_are_named() -> None:
    usual, other = {"the dtype": "float32"}, {"the dtype": "float16"}
    said = _differences([usual, other, usual, other, usual])
    assert "ranks 1, 3: the dtype is float16, on the other ranks float32" in said


def test_a_rank_that_refused_is_named_with_its_reason() -> None:
    said = _differences([{"the dtype": "float32"}, {REFUSED: "q has 5 rows"}])
    assert said == "rank 1 cannot take part, so nothing was sent. rank 1: q has 5 rows"


@pytest.mark.slow
def test_every_rank_is_told_and_the_group_still_works(tmp_path: Path) -> None:
    results = run_ranks("disagreements:run", 3, tmp_path)
    for rank, told in enumerate(results):
        assert isinstance(told, dict), told
        for name in CHANGES.keys() - {"rows"}:
            assert "rank 1: " in told[name], (rank, name, told)
        assert told["afterwards"] == "(1, 8, 6, 8)"
        assert "6 heads" not in told["heads"]
        assert "q has 4 heads, k and v have 4, and 3 ranks exchange heads" in told["heads"]
        assert "allowed are 'auto', 'ring', 'all-gather', 'heads'" in told["unknown schedule"]
        assert "no gradients of captured tensors where ranks share" in told["captured"]
        assert "the plan is for 4 ranks, the mesh has 3" in told["plan of other ranks"]
    own = "q has 5 rows, and rank 1 has 8 by the plan"
    assert own in results[1]["rows"]
    assert own in results[0]["rows"]
    assert results[0]["rows"].startswith("rank 1 cannot take part")
