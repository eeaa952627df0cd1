# SPDX-License-Identifier: Apache-2.0
"""Work: what each rank computes and receives in each round, without making its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash_attention.distributed.cost.machine import Numbers
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, seen
from flash_attention.distributed.spans import Spans, common, count_rows

Bounds = NDArray[np.int64]


class Shape(NamedTuple):
    """The tensors of a call, without their rows."""

    heads: int
    heads_k: int
    d: int
    d_v: int
    batch: int = 1
    itemsize: int = 2

    def flop(self, area: Numbers) -> Numbers:
        """Of the products of the forward pass."""
        return 2.0 * self.batch * self.heads * (self.d + self.d_v) * area

    def key_bytes(self, rows: Numbers) -> Numbers:
        """Of rows of k and v."""
        return rows * (self.batch * self.heads_k * (self.d + self.d_v) * self.itemsize)

    def row_bytes(self, ranks: int) -> int:
        """Of a row of q, k and v and of the output, if `ranks` exchange heads."""
        keys = max(self.heads_k, ranks)  # a head that ranks share is sent to each
        each = self.heads * (self.d + self.d_v) + keys * (self.d + self.d_v)
        return self.batch * each * self.itemsize

    def of_rank(self, ranks: int) -> Shape:
        """The shape after `ranks` have exchanged heads."""
        return self._replace(heads=self.heads // ranks, heads_k=max(1, self.heads_k // ranks))


class RoundWork(NamedTuple):
    """One round on all ranks: the rank whose keys it brings, pairs of a query and a key that it
    sees, and rows of k and v that come from that rank."""

    source: NDArray[np.int64]
    area: Numbers
    rows: Numbers


def ring_work(plan: Plan, mask: Mask) -> Iterator[RoundWork]:
    """The rounds of the ring over one sequence, exactly."""
    starts, ends = _bounds(plan)
    ranks = np.arange(plan.ranks)
    for step in range(plan.ranks):
        source = (ranks - step) % plan.ranks
        keys = starts[source, None, :], ends[source, None, :]
        areas = _area(starts[:, :, None], ends[:, :, None], *keys, mask)  # of pairs of pieces
        yield RoundWork(source, areas.sum((1, 2)), _rows(plan, mask, starts, ends, source))


def even_work(plan: Plan, mask: Mask) -> Iterator[RoundWork]:
    """The rounds of the ring over any documents, as if all were alike: what a rank computes and
    receives in all is divided evenly among them."""
    ranks = np.arange(plan.ranks)
    area = np.array(plan.areas(mask), dtype=np.float64) / plan.ranks
    rows = np.array(
        [_foreign_rows(plan, mask, rank) for rank in range(plan.ranks)], dtype=np.float64
    )
    for step in range(plan.ranks):
        coming = rows / (plan.ranks - 1) if step else np.zeros(plan.ranks)
        yield RoundWork((ranks - step) % plan.ranks, area, coming)


def _foreign_rows(plan: Plan, mask: Mask, rank: int) -> int:
    every = seen(plan, mask, rank)
    own: Spans = common(every, plan.pieces[rank])
    return count_rows(every) - count_rows(own)


def _bounds(plan: Plan) -> tuple[Bounds, Bounds]:
    """Starts and ends of all pieces, (ranks, pieces). Where a rank has fewer, they are empty."""
    most = max(len(spans) for spans in plan.pieces)
    bounds = np.zeros((2, plan.ranks, max(most, 1)), dtype=np.int64)
    for rank, spans in enumerate(plan.pieces):
        for piece, span in enumerate(spans):
            bounds[:, rank, piece] = span
    return bounds[0], bounds[1]


def _area(start: Bounds, end: Bounds, first: Bounds, last: Bounds, mask: Mask) -> Numbers:
    """Pairs of a query from start to end and a key from first to last that it sees."""

    def up_to(reach: int) -> Numbers:
        """Pairs in which the key is at most `reach` behind the query."""

        def before(row: Bounds) -> Numbers:
            inside = np.minimum(np.maximum(row + reach - first, 0), last - first).astype(np.float64)
            beyond = np.maximum(row + reach - last, 0) * (last - first)
            return np.asarray(inside * (inside + 1) / 2 + beyond)

        return before(end) - before(start)

    whole = (end - start).astype(np.float64) * (last - first)
    seen_pairs = whole if mask.right is None else up_to(mask.right)
    return seen_pairs if mask.left is None else seen_pairs - up_to(-mask.left - 1)


def _rows(plan: Plan, mask: Mask, starts: Bounds, ends: Bounds, source: Bounds) -> Numbers:
    """Rows of other ranks that some query of a rank sees, of one sequence."""
    left = plan.total if mask.left is None else mask.left
    right = plan.total if mask.right is None else mask.right
    found = np.zeros(plan.ranks)
    held = ends > starts
    for other in range(starts.shape[1]):
        reached = starts[source, other].copy()  # keys before this are counted
        for piece in range(starts.shape[1]):
            low = np.maximum(reached, starts[:, piece] - left)
            high = np.minimum(ends[source, other], ends[:, piece] + right)
            fresh = np.where(held[:, piece], np.maximum(high - low, 0), 0)
            found += fresh
            reached = np.where(fresh > 0, high, reached)
    return np.where(source == np.arange(plan.ranks), 0, found)
