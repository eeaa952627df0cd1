# SPDX-License-Identifier: Apache-2.0
"""Random plans and masks, and which query sees which key by definition."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import strategies as st

from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, make_plan
from flash_attention.distributed.spans import Span, Spans

sides = st.none() | st.integers(0, 12)
masks = st.builds(Mask, sides, sides)
lengths = st.lists(st.integers(1, 24), min_size=1, max_size=5)
plans = st.builds(
    lambda documents, ranks, causal, placement: make_plan(
        documents, ranks, causal=causal, placement=placement
    ),
    lengths,
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["balanced", "contiguous"]),
)


def sees(mask: Mask, documents: tuple[int, ...], query: int, key: int) -> bool:
    """Whether a query sees a key, both rows of the whole sequence."""
    left, right = mask
    near = (left is None or key >= query - left) and (right is None or key <= query + right)
    return near and bisect_right(documents, query) == bisect_right(documents, key)


def rows(spans: Spans | list[Span]) -> list[int]:
    """The rows of spans."""
    return [row for span in spans for row in range(span.start, span.end)]


def pairs_of(plan: Plan, mask: Mask, rank: int, source: int) -> list[tuple[int, int]]:
    """The pairs of a query of a rank and a key of another that it sees."""
    return [
        (query, key)
        for query in rows(plan.pieces[rank])
        for key in rows(plan.pieces[source])
        if sees(mask, plan.documents, query, key)
    ]
