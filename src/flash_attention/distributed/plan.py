# SPDX-License-Identifier: Apache-2.0
"""Plan: which rows of a sequence, or of packed documents, each rank holds."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from numbers import Integral

from flash_attention.call.call import Window
from flash_attention.call.options import check_switch, check_window
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.spans import Span, Spans, count_rows, cut, joined
from flash_attention.errors import UnsupportedError, quoted

TOLERANCE = 0.01  # how much more than the mean a rank may do before chunks get smaller
GAIN = 0.75  # what smaller chunks must leave of the imbalance, as pieces make more messages
CHUNKS = (1, 2, 4, 8, 16, 32, 64)  # of a rank; the fewest that are balanced are taken


@dataclass(frozen=True, eq=False)
class Plan:
    """Which rows each rank holds. `make_plan` makes one.

    - `documents`: the first row of each document, and the end of the last. A document is a packed
      sequence; rows see no other document than their own.
    - `pieces`: of each rank, the spans of rows that it holds, in ascending order.
    """

    documents: tuple[int, ...]
    pieces: tuple[Spans, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.pieces)

    @property
    def total(self) -> int:
        """The number of rows of all ranks."""
        return self.documents[-1]

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """How many rows each rank holds."""
        return tuple(map(count_rows, self.pieces))

    @cached_property
    def digest(self) -> str:
        """A text that differs between different plans."""
        return hashlib.sha256(repr((self.documents, self.pieces)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        few, many = min(self.rows), max(self.rows)
        of_rank = f"{few}" if few == many else f"{few} to {many}"
        return (
            f"rows: {self.total}, documents: {len(self.documents) - 1}, ranks: {self.ranks}, rows"
            f" of a rank: {of_rank}, digest: {self.digest}"
        )

    def document(self, number: int) -> Span:
        """The rows of a document."""
        return Span(self.documents[number], self.documents[number + 1])

    def areas(self, mask: Mask) -> tuple[int, ...]:
        """How many pairs of a query and a key that it sees there are on each rank."""
        to = _Areas(self.documents, mask).before
        return tuple(sum(to(end) - to(start) for start, end in spans) for spans in self.pieces)


@lru_cache(maxsize=1024)
def seen(plan: Plan, mask: Mask, rank: int) -> Spans:
    """The keys of all ranks that some query of a rank sees."""
    return joined(
        mask.keys_of(piece.span, plan.document(number))
        for number, piece in cut(plan.pieces[rank], plan.documents)
    )


@lru_cache(maxsize=64)
def grouped(plan: Plan, size: int) -> Plan:
    """The plan of groups of `size` neighbouring ranks, each of which holds what its ranks do."""
    starts = range(0, plan.ranks, size)
    groups = (plan.pieces[start : start + size] for start in starts)
    return Plan(plan.documents, tuple(joined(sum(group, ())) for group in groups))


def make_plan(
    lengths: int | Iterable[int],
    ranks: int,
    *,
    causal: bool = False,
    window: Window | None = None,
    placement: str = "balanced",
) -> Plan:
    """Decide which rows each rank holds, so that all have about the same number of rows and of
    pairs of a query and a key that it sees.

    - `lengths`: the length of the sequence, or those of packed documents. Any length will do.
    - `ranks`: among how many ranks the rows are divided.
    - `causal`, `window`: the mask that the work is balanced for, as in `attention`. Other masks
      can be used with the plan too, and are computed as exactly.
    - `placement`: "balanced", or "contiguous" for one piece per rank, as DTensor and torch.chunk
      place rows.

    The rows are cut into chunks of equal length, a few for each rank, and each rank gets as many,
    the largest first to the rank that has least to do. For a causal mask over one sequence that is
    the zigzag placement. Returns a Plan. Raises UnsupportedError for lengths that are none.
    """
    documents = _documents(lengths)
    if not isinstance(ranks, Integral) or isinstance(ranks, bool) or ranks < 1:
        raise UnsupportedError(f"ranks is {quoted(ranks)}; pass a positive int, as mesh.size()")
    check_switch("causal", causal)
    check_window(window)
    contiguous = Plan(documents, _contiguous(documents[-1], int(ranks)))
    if placement == "contiguous":
        return contiguous
    if placement != "balanced":
        raise UnsupportedError(
            f"placement is {quoted(placement)}; allowed are 'balanced' and 'contiguous'"
        )
    mask, best, least = Mask.of(bool(causal), window), contiguous, float("inf")
    for chunks in CHUNKS:
        plan = contiguous if chunks == 1 else _dealt(documents, int(ranks), chunks, mask)
        if (away := imbalance(plan, mask)) < GAIN * least:
            best, least = plan, away
        if least <= TOLERANCE or chunks * ranks >= documents[-1]:
            break
    return best


def imbalance(plan: Plan, mask: Mask) -> float:
    """How much more than the mean the rank that does most has to do, as a fraction: the others
    wait for it."""
    areas = plan.areas(mask)
    mean = sum(areas) / len(areas)
    return max(areas) / mean - 1 if mean else 0.0


def _documents(lengths: object) -> tuple[int, ...]:
    given = [lengths] if isinstance(lengths, Integral) else lengths
    if not isinstance(given, Iterable):
        given = [lengths]
    numbers = list(given)
    for length in numbers:
        if not isinstance(length, Integral) or isinstance(length, bool) or length < 0:
            raise UnsupportedError(
                f"lengths has {quoted(length)}; pass the length of the sequence, or a list with"
                " that of each document, whole numbers from 0 on"
            )
    return (0, *accumulate(int(length) for length in numbers if length))


def _contiguous(total: int, ranks: int) -> tuple[Spans, ...]:
    rows = max(-(-total // ranks), 1)
    starts = range(0, rows * ranks, rows)
    return tuple(joined([Span(start, start + rows).within(Span(0, total))]) for start in starts)


def _dealt(documents: tuple[int, ...], ranks: int, chunks: int, mask: Mask) -> Plan:
    """Cut the rows into chunks, and give each rank equally many, the largest ones first."""
    total, count = documents[-1], chunks * ranks
    bounds = [total * number // count for number in range(count + 1)]
    to = _Areas(documents, mask).before
    work = [end - start for start, end in pairwise(map(to, bounds))]
    hands: list[list[Span]] = [[] for _ in range(ranks)]
    least = [(0, rank) for rank in range(ranks)]
    heapify(least)
    for chunk in sorted(range(count), key=lambda chunk: (-work[chunk], -chunk)):
        area, rank = heappop(least)
        hands[rank].append(Span(bounds[chunk], bounds[chunk + 1]))
        if len(hands[rank]) < chunks:
            heappush(least, (area + work[chunk], rank))
    return Plan(documents, tuple(map(joined, hands)))


class _Areas:
    """Sums of how many keys queries see, over any number of the first rows."""

    def __init__(self, documents: tuple[int, ...], mask: Mask) -> None:
        lengths = [end - start for start, end in pairwise(documents)]
        self.documents, self.mask, self.lengths = documents, mask, lengths
        self.sums = [0, *accumulate(mask.area(length, length) for length in lengths)]

    def before(self, row: int) -> int:
        """How many keys all queries before a row see together."""
        number = bisect_right(self.documents, row) - 1
        if number >= len(self.lengths):
            return self.sums[-1]
        within = row - self.documents[number]
        return self.sums[number] + self.mask.area(within, self.lengths[number])
