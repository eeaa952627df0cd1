# SPDX-License-Identifier: Apache-2.0
"""Distributed attention gives what one process gives: every schedule, mask and number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ranks_compute_what_one_process_does(ranks: int, tmp_path: Path) -> None:
    assert run_ranks("cases:run_cases", ranks, tmp_path) == [{}] * ranks


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_share_a_gpu_compute_what_one_does(ranks: int, tmp_path: Path) -> None:
    assert run_ranks("cases:run_cases", ranks, tmp_path, "cuda") == [{}] * ranks
