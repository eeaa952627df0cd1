# SPDX-License-Identifier: Apache-2.0
"""Distributed attention gives what one process gives: every schedule, mask and number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.gate import EXHAUSTIVE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        *((2, "4"), (3, "8"), (4, "8")),
        *(pytest.param(ranks, "2", marks=EXHAUSTIVE) for ranks in (2, 3, 4, 8)),
    ],
)
def test_ranks_compute_what_one_process_does(ranks: int, share: str, tmp_path: Path) -> None:
    assert run_ranks("cases:run_cases", ranks, tmp_path, "cpu", share) == [{}] * ranks


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_share_a_gpu_compute_what_one_does(ranks: int, tmp_path: Path) -> None:
    assert run_ranks("cases:run_cases", ranks, tmp_path, "cuda") == [{}] * ranks
