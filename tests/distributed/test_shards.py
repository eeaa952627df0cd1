# SPDX-License-Identifier: Apache-2.0
"""Rows go to the ranks of their plan, and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks


@pytest.mark.slow
def test_rows_go_to_their_ranks_and_come_back(tmp_path: Path) -> None:
    assert run_ranks("placements:placed", 4, tmp_path) == [""] * 4
