# SPDX-License-Identifier: Apache-2.0
"""Whether two strided views overlap in memory, and whether elements of one view do.

Both questions are bounded integer equations, sum(stride * x) = offset, which are solved at once if
the strides are nested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

SEARCH_LIMIT = 4096  # steps of the search, after which the views count as overlapping


@dataclass(frozen=True)
class Layout:
    """The sizes of a view, with its strides and its item size in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def empty(self) -> bool:
        """Whether the view has no element."""
        return 0 in self.shape

    @property
    def span(self) -> int:
        """The number of bytes from the first to the last that the view touches."""
        if self.empty:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return last + self.itemsize


@dataclass(frozen=True)
class _Term:
    stride: int
    low: int
    high: int


@lru_cache(maxsize=1024)
def may_overlap(distance: int, first: Layout, second: Layout) -> bool:
    """Return False only if `second`, `distance` bytes after `first`, shares no byte with it."""
    if first.empty or second.empty:
        return False
    terms = [
        *(_Term(s, 0, n - 1) for n, s in _with_bytes(second)),
        *(_Term(s, 1 - n, 0) for n, s in _with_bytes(first)),
    ]
    return _reaches_zero(distance, terms)


@lru_cache(maxsize=1024)
def overlaps_itself(layout: Layout) -> bool:
    """Return False only if no two elements of the view share a byte."""
    if layout.empty:
        return False
    sizes = [(n, s) for n, s in zip(layout.shape, layout.strides, strict=True) if n > 1]
    byte = _Term(1, 1 - layout.itemsize, layout.itemsize - 1)
    for i, (n, s) in enumerate(sizes):
        others = [_Term(stride, 1 - size, size - 1) for size, stride in sizes[i + 1 :]]
        if _reaches_zero(s, [_Term(s, 0, n - 2), *others, byte]):
            return True
    return False


def _with_bytes(layout: Layout) -> Iterable[tuple[int, int]]:
    yield from zip(layout.shape, layout.strides, strict=True)
    yield layout.itemsize, 1


def _reaches_zero(offset: int, terms: Iterable[_Term]) -> bool:
    """Whether offset + sum(stride * x) can be zero. Also True if the search gives up."""
    ordered = _merge(terms)
    bounds = [(0, 0, 0)]  # of the remaining sums: minimum, maximum, greatest common divisor
    for term in reversed(ordered):
        low, high, divisor = bounds[-1]
        bounds.append(
            (
                low + term.stride * term.low,
                high + term.stride * term.high,
                gcd(divisor, term.stride),
            )
        )
    bounds.reverse()

    pending = [(0, offset)]
    for _ in range(SEARCH_LIMIT):
        if not pending:
            return False
        depth, rest = pending.pop()
        low, high, divisor = bounds[depth]
        if not low <= -rest <= high or (divisor and rest % divisor):
            continue
        if depth == len(ordered):
            return True
        term = ordered[depth]
        next_low, next_high, _ = bounds[depth + 1]
        first = max(term.low, -((rest + next_high) // term.stride))
        last = min(term.high, (-rest - next_low) // term.stride)
        if last - first > SEARCH_LIMIT:
            return True
        pending.extend((depth + 1, rest + term.stride * x) for x in range(first, last + 1))
    return True


def _merge(terms: Iterable[_Term]) -> Sequence[_Term]:
    """Merge terms of equal stride, largest stride first, and drop those that add nothing."""
    merged: dict[int, _Term] = {}
    for term in terms:
        if term.stride == 0 or term.low == term.high == 0:
            continue
        known = merged.get(term.stride, _Term(term.stride, 0, 0))
        merged[term.stride] = _Term(term.stride, known.low + term.low, known.high + term.high)
    return sorted(merged.values(), key=lambda term: -term.stride)
