# SPDX-License-Identifier: Apache-2.0
"""Plans place every row once, and balance rows and work."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given

from flash_attention import UnsupportedError
from flash_attention.distributed import Plan, make_plan
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import TOLERANCE, grouped, imbalance, seen
from flash_attention.distributed.spans import Span
from tests.distributed.sequences import masks, pairs_of, plans, rows

CAUSAL = Mask(None, 0)
WITHIN = 0.03
TOTAL = 1 << 16


def packing(number: int) -> list[int]:
    """Random lengths of documents: even, heavy-tailed, of few kinds, short, or of all sizes."""
    drawn = random.Random(number)
    kinds: tuple[Callable[[], int], ...] = (
        lambda: drawn.randint(1, 4096),
        lambda: int(64 * drawn.paretovariate(0.7)),
        lambda: drawn.choice([32768, 100, 500]),
        lambda: drawn.randint(1, 64),
        lambda: int(2 ** drawn.uniform(3, 15)),
    )
    draw = kinds[number % len(kinds)]
    found: list[int] = []
    while sum(found) < TOTAL:
        found.append(min(draw(), TOTAL - sum(found)))
    return found


def farthest(plan: Plan) -> float:
    """How far the work of a rank is from the mean, as a fraction."""
    areas = plan.areas(CAUSAL)
    mean = sum(areas) / len(areas)
    return max(abs(area - mean) for area in areas) / mean


@given(plans, masks)
def test_every_row_is_on_one_rank(plan: Plan, mask: Mask) -> None:
    held = [row for spans in plan.pieces for row in rows(spans)]
    assert sorted(held) == list(range(plan.total))
    assert plan.rows == tuple(len(rows(spans)) for spans in plan.pieces)
    for rank in range(plan.ranks):
        pairs = [
            pair for source in range(plan.ranks) for pair in pairs_of(plan, mask, rank, source)
        ]
        assert plan.areas(mask)[rank] == len(pairs)
        assert set(rows(seen(plan, mask, rank))) == {key for _, key in pairs}


def test_a_causal_plan_is_the_zigzag() -> None:
    plan = make_plan(64, 4, causal=True)
    assert plan.pieces == (
        (Span(0, 8), Span(56, 64)),
        (Span(8, 16), Span(48, 56)),
        (Span(16, 24), Span(40, 48)),
        (Span(24, 40),),
    )


@pytest.mark.parametrize("length", [1000, 4097, 65_536, 1_000_003])
def test_causal_work_is_balanced(length: int) -> None:
    plan = make_plan(length, 8, causal=True)
    assert farthest(plan) <= WITHIN
    assert max(plan.rows) - min(plan.rows) <= 2
    assert max(map(len, plan.pieces)) == 2


@pytest.mark.parametrize("number", range(50))
def test_work_of_documents_is_balanced(number: int) -> None:
    plan = make_plan(packing(number), 8, causal=True)
    assert farthest(plan) <= WITHIN
    assert imbalance(plan, CAUSAL) <= TOLERANCE
    assert max(plan.rows) - min(plan.rows) <= max(map(len, plan.pieces))


def test_without_a_mask_rows_stay_together() -> None:
    plan = make_plan(100, 4)
    assert plan.pieces == make_plan(100, 4, placement="contiguous").pieces
    assert plan.rows == (25,) * 4


def test_a_window_leaves_rows_together() -> None:
    plan = make_plan(1 << 17, 8, causal=True, window=(1024, 0))
    assert max(map(len, plan.pieces)) == 1


@pytest.mark.parametrize(("total", "ranks"), [(10, 4), (3, 4), (9, 8), (0, 2)])
def test_contiguous_rows_are_those_of_chunk(total: int, ranks: int) -> None:
    plan = make_plan(total, ranks, placement="contiguous")
    chunks = [chunk.tolist() for chunk in torch.arange(total).chunk(ranks)] if total else []
    chunks += [[]] * (ranks - len(chunks))
    assert [rows(spans) for spans in plan.pieces] == chunks


def test_groups_of_ranks_hold_what_their_ranks_do() -> None:
    plan = make_plan([40, 24], 4, causal=True)
    pairs = grouped(plan, 2)
    assert pairs.ranks == 2
    for group, spans in enumerate(pairs.pieces):
        both = plan.pieces[2 * group] + plan.pieces[2 * group + 1]
        assert rows(spans) == sorted(rows(list(both)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lengths": -1}, "lengths has -1"),
        ({"lengths": [3, 2.5]}, "lengths has 2.5"),
        ({"lengths": "long"}, "lengths has 'l'"),
        ({"ranks": 0}, "ranks is 0; pass a positive int"),
        ({"placement": "zigzag"}, "allowed are 'balanced' and 'contiguous'"),
        ({"window": 3}, "window is 3"),
        ({"causal": 2}, "causal is 2"),
    ],
)
def test_what_makes_no_plan(given: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"lengths": 8, "ranks": 2} | given
    with pytest.raises(UnsupportedError, match=says):
        make_plan(**arguments)
