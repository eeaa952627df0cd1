# SPDX-License-Identifier: Apache-2.0
"""Distributed attention gives what one process gives: every schedule, mask and number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.gate import EXHAUSTIVE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "device", "share"),
    [
        *((2, "cpu", "4"), (3, "cpu", "8"), (4, "cpu", "8")),
        *(pytest.param(ranks, "cpu", "2", marks=EXHAUSTIVE) for ranks in (2, 3, 4, 8)),
        *(pytest.param(ranks, "cuda", "1", marks=pytest.mark.gpu) for ranks in (1, 2, 4)),
    ],
)
def test_ranks_compute_what_one_process_does(
    ranks: int, device: str, share: str, tmp_path: Path
) -> None:
    assert run_ranks("cases:run_cases", ranks, tmp_path, device, share) == [{}] * ranks
