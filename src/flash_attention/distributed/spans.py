# SPDX-License-Identifier: Apache-2.0
"""Spans: ranges of rows of the whole sequence, and where they lie in a tensor that holds some."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple


class Span(NamedTuple):
    """The rows from `start` to before `end`."""

    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.end - self.start

    def within(self, other: Span) -> Span:
        """The rows that both have. It is empty, with `end` at most `start`, if there are none."""
        return Span(max(self.start, other.start), min(self.end, other.end))

    def moved(self, by: int) -> Span:
        """The span `by` rows further on."""
        return Span(self.start + by, self.end + by)


Spans = tuple[Span, ...]
"""Spans in ascending order that do not overlap."""


def count_rows(spans: Iterable[Span]) -> int:
    """How many rows there are in all spans."""
    return sum(span.rows for span in spans)


def joined(spans: Iterable[Span]) -> Spans:
    """The union of spans in any order. Neighbours become one."""
    found: list[Span] = []
    for span in sorted(spans):
        if span.rows <= 0:
            continue
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return tuple(found)


def common(some: Spans, others: Spans) -> Spans:
    """The rows that are in both."""
    found, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        shared = some[i].within(others[j])
        if shared.rows > 0:
            found.append(shared)
        if some[i].end < others[j].end:
            i += 1
        else:
            j += 1
    return tuple(found)


class Held(NamedTuple):
    """A span of the whole sequence, and the same rows in a tensor that holds several spans."""

    span: Span
    at: Span


def held(spans: Sequence[Span]) -> Iterator[Held]:
    """The spans of a tensor that holds their rows one after the other."""
    ends = accumulate(span.rows for span in spans)
    return (Held(span, Span(end - span.rows, end)) for span, end in zip(spans, ends, strict=True))


def places(part: Spans, whole: Spans) -> Spans:
    """Where the rows of `part` lie in a tensor that holds `whole`."""
    return joined(
        place.moved(each.at.start - each.span.start)
        for each in held(whole)
        for place in common(part, (each.span,))
    )


def cut(spans: Sequence[Span], bounds: Sequence[int]) -> Iterator[tuple[int, Held]]:
    """Cut spans at bounds. Every piece comes with the number of the bound that it lies behind."""
    for span, at in held(spans):
        start = span.start
        while start < span.end:
            number = bisect_right(bounds, start) - 1
            end = span.end if number + 1 == len(bounds) else min(span.end, bounds[number + 1])
            piece = Span(start, end)
            yield number, Held(piece, piece.moved(at.start - span.start))
            start = end
