# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest

from flash_attention.arch import ARCHES
from flash_attention.kernel_configs import DType
from flash_attention.ladder import LadderError, climb, get_ladder

LADDERS = [(dtype, d_head) for dtype in DType for d_head in (64, 128)]


@pytest.mark.parametrize(("dtype", "d_head"), LADDERS)
def test_adjacent_rungs_differ_in_exactly_one_field(dtype: DType, d_head: int) -> None:
    rungs = get_ladder(dtype, d_head)
    assert [rung.number for rung in rungs] == list(range(1, 17))
    assert rungs[0].field is None
    for below, above in pairwise(rungs):
        differing = [
            f.name
            for f in fields(below.config)
            if getattr(below.config, f.name) != getattr(above.config, f.name)
        ]
        assert differing == [above.field]


@pytest.mark.parametrize(("dtype", "d_head"), LADDERS)
def test_every_rung_is_valid_everywhere(dtype: DType, d_head: int) -> None:
    for rung in get_ladder(dtype, d_head):
        assert {a.name for a in ARCHES.values() if rung.config.broken_rule(a)} == set(), rung.name
        assert (rung.config.dtype, rung.config.d_head) == (dtype, d_head)


def test_rungs_have_names_and_ideas_of_their_own() -> None:
    rungs = get_ladder()
    assert len({rung.name for rung in rungs}) == len({rung.idea for rung in rungs}) == 16


def test_the_last_rung_follows_the_number_of_heads() -> None:
    assert get_ladder(d_head=64, n_heads=12)[-1].config.static_row_stride == 12 * 64


@pytest.mark.parametrize(
    "change",
    [{"swizzled": True, "async_copy": False}, {}, {"swizzled": False}],
    ids=["two fields", "none", "same value"],
)
def test_a_step_that_is_not_one_change_is_refused(change: dict[str, bool]) -> None:
    base = get_ladder()[0].config
    with pytest.raises(LadderError, match="exactly one field"):
        climb(base, "base", ("broken", "not a step", change))
