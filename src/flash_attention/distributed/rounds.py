# SPDX-License-Identifier: Apache-2.0
"""Rounds: which rows travel between ranks in which order, and what is computed with them.

In the ring a round brings the keys of one rank: first the own ones, then those of the rank before,
and so on. In the all-gather schedule one round brings the keys of all ranks. Rows go straight to
the ranks whose queries see them, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, seen
from flash_attention.distributed.spans import Spans, common, count_rows, joined, places
from flash_attention.distributed.tasks import Task, tasks_of

RING, ALL_GATHER, HEADS = "ring", "all-gather", "heads"


class Round(NamedTuple):
    """What happens to the keys that one round brings together on a rank."""

    rows: int  # keys that are together
    sources: Mapping[int, Spans]  # by rank, where its keys lie among them
    sent: Mapping[int, Spans]  # by rank, which of the keys held here it gets; itself too
    tasks: tuple[Task, ...]

    def sizes(self, rank: int) -> dict[int, int]:
        """How many rows come from each other rank."""
        return {source: count_rows(at) for source, at in self.sources.items() if source != rank}


def sources(kind: str, ranks: int, rank: int) -> list[list[int]]:
    """The ranks whose keys each round brings to a rank."""
    if kind == ALL_GATHER:
        return [list(range(ranks))]
    return [[(rank - step) % ranks] for step in range(ranks)]


def receivers(kind: str, ranks: int, rank: int) -> list[list[int]]:
    """The ranks that get keys of a rank in each round."""
    if kind == ALL_GATHER:
        return [list(range(ranks))]
    return [[(rank + step) % ranks] for step in range(ranks)]


def needed(plan: Plan, mask: Mask, rank: int, source: int) -> Spans:
    """The keys held by `source` that queries of a rank see."""
    return common(seen(plan, mask, rank), plan.pieces[source])


@lru_cache(maxsize=64)
def rounds_of(
    plan: Plan, mask: Mask, rank: int, kind: str, may_pack: bool = True, placed: bool = False
) -> tuple[Round, ...]:
    """The rounds of a rank, in order."""
    found = []
    order = zip(sources(kind, plan.ranks, rank), receivers(kind, plan.ranks, rank), strict=True)
    for some, others in order:
        parts = {source: needed(plan, mask, rank, source) for source in some}
        keys = joined(span for spans in parts.values() for span in spans)
        leaving = {other: needed(plan, mask, other, rank) for other in others}
        tasks = tasks_of(plan, mask, plan.pieces[rank], keys, may_pack, placed=placed)
        found.append(
            Round(
                count_rows(keys),
                {source: places(spans, keys) for source, spans in parts.items() if spans},
                {
                    other: places(spans, plan.pieces[rank])
                    for other, spans in leaving.items()
                    if spans
                },
                tuple(tasks),
            )
        )
    return tuple(found)
