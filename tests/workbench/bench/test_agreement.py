# SPDX-License-Identifier: Apache-2.0
"""Ratios of two files, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.agreement import agreements, pair_up
from flash_attention_workbench.bench.grid_record import GridRecord
from flash_attention_workbench.bench.grid_run import OURS
from tests.workbench.bench.made_up_grid import LONG, made_up_grid, made_up_rows

FACTS = made_up_grid()


def test_means_and_spreads_of_every_contender() -> None:
    first = made_up_rows()
    faster = [replace(first[0], ms=first[0].ms / 2), *first[1:3]]
    faster[2] = replace(first[2], ms=first[2].ms * 2, peers={"cudnn": first[2].peers["cudnn"] / 4})
    pairs = pair_up(GridRecord(FACTS, tuple(first)), GridRecord(FACTS, tuple(faster)))
    found = {one.contender: one for one in agreements(pairs)}
    assert set(found) == {OURS, LONG, "fa3", "cudnn", "fa2"}
    assert (found[OURS].points, found[OURS].least, found[OURS].greatest) == (2, 0.5, 2.0)
    assert found[OURS].mean == pytest.approx(1.0)
    assert found["cudnn"].points == 2
    assert found["cudnn"].mean == pytest.approx(2.0)
    assert found["fa2"].mean == found[LONG].mean == 1.0


def test_a_wrong_kernel_has_no_ratio() -> None:
    first = made_up_rows()
    wrong = [replace(first[0], ok=False)]
    pairs = pair_up(GridRecord(FACTS, tuple(first)), GridRecord(FACTS, tuple(wrong)))
    assert OURS not in {pair.contender for pair in pairs}


def test_files_of_other_points_are_refused() -> None:
    first, second = made_up_rows()[:1], made_up_rows()[2:]
    with pytest.raises(UnsupportedError, match="no point in common: grid fa3, BF16, and fa3"):
        pair_up(GridRecord(FACTS, tuple(first)), GridRecord(FACTS, tuple(second)))
