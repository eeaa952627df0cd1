# SPDX-License-Identifier: Apache-2.0
"""Which other lengths a recipe serves, and with how many CTAs."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.families.fit import MAX_GRID_X
from flash_attention.families.recipe import Resize, Resized
from flash_attention.families.sm90.forward.config import (
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)
from flash_attention.families.sm90.forward.decode import Steps, ctas_on_device
from flash_attention.families.sm90.forward.features import Walk
from flash_attention.families.sm90.forward.fit import check_tiles
from flash_attention.families.sm90.forward.heuristic import (
    has_few_tiles,
    has_many_rows,
    has_short_documents,
)
from flash_attention.families.sm90.forward.mixed import few_queries
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tiles import SHORT


def resizing(
    config: HopperForwardKernelConfig,
    problem: Problem,
    walk: Walk,
    split: KvSplits | None,
    num_sms: int,
) -> Resize | None:
    """Return what resizes the recipe of a problem whose sequences differ in length, unless the
    host splits its keys. Many tiles of 8 bits may suit FP8 kernels with other lengths. One config
    that is batch-invariant serves all lengths."""
    if problem.idle or not problem.per_batch or (split is not None and not split.ctas):
        return None
    serves_all = problem.batch_invariant
    kind, length = Steps.of(problem, num_sms), _length(problem)
    if problem.dtype == E4M3 and kind is Steps.MANY_TILES and not serves_all:
        return None
    rows = config.B_r
    few = problem.most_queries or WARPGROUP_ROWS // problem.heads_per_kv  # queries of decoding
    shared = few_queries(problem)
    least = 1 if walk is Walk.PACKED else 0
    most = MAX_GRID_X if walk is Walk.ONE_EACH else num_sms * config.side_by_side
    known: dict[tuple[bool, int], Resized] = {}  # splits by what they depend on

    def resize(other: Problem) -> Resized | None:
        is_kind = other.seq_q <= few if kind is Steps.DECODE else Steps.of(other, num_sms) is kind
        if not (serves_all or (is_kind and _length(other) == length)):
            return None
        if kind is not Steps.DECODE and few_queries(other) != shared:
            return None
        if split is not None:
            key = other.batch == 1, min(other.seq_q, rows)
            if key not in known:
                own = replace(split, ctas=ctas_on_device(config, other, num_sms))
                sizes = own.scratch(other, config.consumers)
                known[key] = Resized(((own.ctas, 1, 1),), sizes)
            return known[key]
        tiles = other.num_tiles(rows)
        if tiles > MAX_GRID_X:
            check_tiles(config, other)
        return Resized(((min(max(tiles, least), most), 1, 1),))

    return resize


def _length(problem: Problem) -> tuple[bool, ...]:
    """Return what the heuristic's choice follows from, of the lengths."""
    return (
        problem.seq_q <= SHORT,
        has_short_documents(problem),
        has_many_rows(problem),
        has_few_tiles(problem),
    )
