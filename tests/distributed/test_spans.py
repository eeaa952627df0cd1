# SPDX-License-Identifier: Apache-2.0
"""Sets of rows as spans agree with sets of rows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flash_attention.distributed.spans import Span, Spans, common, count_rows, cut, joined, places
from tests.distributed.sequences import rows

any_spans = st.lists(st.builds(lambda a, n: Span(a, a + n), st.integers(0, 30), st.integers(0, 9)))
spans = any_spans.map(joined)


@given(any_spans)
def test_joined_spans_are_the_union(some: list[Span]) -> None:
    found = joined(some)
    assert rows(found) == sorted(set(rows(some)))
    assert all(a.end < b.start for a, b in pairwise(found))


@given(spans, spans)
def test_common_rows_are_the_intersection(some: Spans, others: Spans) -> None:
    assert rows(common(some, others)) == sorted({*rows(some)} & {*rows(others)})


@given(spans, spans)
def test_places_are_where_a_tensor_holds_rows(some: Spans, whole: Spans) -> None:
    part = common(some, whole)
    held = rows(whole)
    assert [held[place] for place in rows(places(part, whole))] == rows(part)


@given(spans, st.lists(st.integers(1, 40), unique=True))
def test_cut_spans_cross_no_bound(some: Spans, bounds: list[int]) -> None:
    bounds = [0, *sorted(bounds)]
    pieces = list(cut(some, bounds))
    assert rows([piece.span for _, piece in pieces]) == rows(some)
    assert rows([piece.at for _, piece in pieces]) == list(range(count_rows(some)))
    for number, (span, _) in pieces:
        behind = bounds[number + 1] if number + 1 < len(bounds) else 100
        assert bounds[number] <= span.start < span.end <= behind
