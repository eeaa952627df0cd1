# SPDX-License-Identifier: Apache-2.0
"""Rounds bring every rank the rows that it sees, and send nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, make_plan, seen
from flash_attention.distributed.rounds import ALL_GATHER, RING, rounds_of
from flash_attention.distributed.spans import common, count_rows
from tests.distributed.sequences import masks, plans


@given(plans, masks, st.sampled_from([RING, ALL_GATHER]))
def test_what_is_sent_is_what_is_awaited(plan: Plan, mask: Mask, kind: str) -> None:
    every = [rounds_of(plan, mask, rank, kind) for rank in range(plan.ranks)]
    assert {len(rounds) for rounds in every} == {plan.ranks if kind == RING else 1}
    for rank, rounds in enumerate(every):
        for number, now in enumerate(rounds):
            for source, at in now.sources.items():
                leaving = every[source][number].sent[rank]
                assert count_rows(at) == count_rows(leaving)
            assert now.rows == sum(map(count_rows, now.sources.values()))
        fetched = {source: count_rows(at) for now in rounds for source, at in now.sources.items()}
        needed = {
            source: count_rows(common(seen(plan, mask, rank), plan.pieces[source]))
            for source in range(plan.ranks)
        }
        assert fetched == {source: count for source, count in needed.items() if count}


@pytest.mark.parametrize("kind", [RING, ALL_GATHER])
def test_documents_of_one_rank_do_not_travel(kind: str) -> None:
    plan = make_plan([16] * 8, 4, causal=True)
    for rank in range(4):
        for now in rounds_of(plan, Mask(None, 0), rank, kind):
            assert set(now.sent) <= {rank}


def test_a_window_reaches_only_the_neighbour() -> None:
    plan, mask = make_plan(4000, 4, placement="contiguous"), Mask(100, 0)
    for rank in range(4):
        sent = {
            other: count_rows(at)
            for now in rounds_of(plan, mask, rank, RING)
            for other, at in now.sent.items()
            if other != rank
        }
        assert sent == ({rank + 1: 100} if rank < 3 else {})
