# SPDX-License-Identifier: Apache-2.0
"""Tasks: the calls of attention that compute what the queries of a rank see of some keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise, product
from typing import NamedTuple

from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan
from flash_attention.distributed.spans import Held, Span, Spans, cut

FULL = Mask()


class Places(NamedTuple):
    """Where a sequence of a task begins: its document, and its first query and key in that."""

    document: int = 0
    query: int = 0
    key: int = 0


class Pair(NamedTuple):
    """Queries and keys that are neighbours in their tensors, and the mask between them."""

    queries: Span
    keys: Span
    mask: Mask
    places: Places | None = None  # None if neighbours in tensors may be none in their document

    def follows(self, other: Pair) -> bool:
        """Whether both can be sequences of one packed call, this one after the other."""
        behind = other.queries.end <= self.queries.start and other.keys.end <= self.keys.start
        return behind and self.mask == other.mask


class Packed(NamedTuple):
    """The sequences of a packed call, as `attention` takes them."""

    starts_q: tuple[int, ...]
    starts_k: tuple[int, ...]

    @property
    def longest(self) -> tuple[int, int]:
        """The most queries and the most keys of a sequence."""
        lengths = ((end - start for start, end in pairwise(s)) for s in self)
        return tuple(map(max, lengths))  # type: ignore[return-value]


class Task(NamedTuple):
    """One call of attention: its queries, its keys, their mask. `packed` is None if it is one
    sequence. Where a packed call leaves out keys, they are those of a sequence without queries."""

    queries: Span
    keys: Span
    mask: Mask
    packed: Packed | None = None
    places: tuple[Places, ...] = ()  # of each sequence, if they are asked for


def tasks_of(
    plan: Plan, mask: Mask, queries: Spans, keys: Spans, may_pack: bool, *, placed: bool = False
) -> list[Task]:
    """The tasks of all pairs of a query and a key that it sees, once each.

    `queries` and `keys` are what tensors hold. Without `may_pack` every task is one sequence, which
    may have a batch dimension. With `placed` the rows of a sequence follow each other in their
    document too.
    """
    pairs = visible_pairs(plan, mask, queries, keys, placed=placed)
    if not may_pack:
        return [_task([pair]) for pair in pairs]
    groups: list[list[Pair]] = []
    for pair in pairs:
        fitting = (group for group in groups if pair.follows(group[-1]))
        if (group := next(fitting, None)) is not None:
            group.append(pair)
        else:
            groups.append([pair])
    return list(map(_task, groups))


def halves(tasks: tuple[Task, ...]) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Divide tasks into some to compute first and some to compute last. A single task is divided
    by its queries, if that leaves both parts a mask that is aligned at their last key."""
    if len(tasks) != 1:
        return tasks[: len(tasks) // 2], tasks[len(tasks) // 2 :]
    (task,) = tasks
    queries, keys, mask, packed, _ = task
    middle = queries.start + queries.rows // 2
    last = Span(middle, queries.end)
    seen = keys if mask == FULL else Span(keys.start, keys.end - last.rows)
    aligned = mask == FULL or mask.right == 0
    if packed is not None or not aligned or queries.rows < 2 or seen.rows <= 0:
        return tasks, ()
    first = task._replace(queries=Span(queries.start, middle), keys=seen)
    behind = middle - queries.start
    places = tuple(place._replace(query=place.query + behind) for place in task.places)
    return (first,), (task._replace(queries=last, places=places),)


def _task(pairs: list[Pair]) -> Task:
    first, last = pairs[0], pairs[-1]
    queries = Span(first.queries.start, last.queries.end)
    keys = Span(first.keys.start, last.keys.end)
    if len(pairs) == 1:
        places = () if first.places is None else (first.places,)
        return Task(queries, keys, first.mask, places=places)
    starts = [(0, 0)]
    placed: list[Places] = []
    for pair in pairs:
        q, k = pair.queries.moved(-queries.start), pair.keys.moved(-keys.start)
        last_q, last_k = starts[-1]
        if q.start > last_q:
            starts.append((q.start, last_k))  # queries that see no key
        if k.start > last_k:
            starts.append((q.start, k.start))  # keys that no query sees
        starts.append((q.end, k.end))
        if pair.places is not None:
            placed += [Places()] * (len(starts) - 2 - len(placed)) + [pair.places]
    starts_q, starts_k = zip(*starts, strict=True)
    return Task(queries, keys, first.mask, Packed(starts_q, starts_k), tuple(placed))


def visible_pairs(
    plan: Plan, mask: Mask, queries: Spans, keys: Spans, *, placed: bool = False
) -> list[Pair]:
    """The pairs of spans that hold all pairs of a query and a key that it sees, once each."""
    of_documents = {number: list(held) for number, held in _by_document(keys, plan)}
    found: list[Pair] = []
    for number, pieces in _by_document(queries, plan):
        document = plan.document(number)
        if number not in of_documents:
            continue
        held = list(pieces), of_documents[number]
        if placed:
            found += _placed(mask, document, number, *held)
        else:
            found += _joined_queries(_in_document(mask, document, *held))
    return found


def _placed(
    mask: Mask, document: Span, number: int, queries: list[Held], keys: list[Held]
) -> Iterator[Pair]:
    """Pairs that are not joined, with their places."""
    for piece, others in product(queries, keys):
        pair = _visible(mask, document, piece, others)
        if pair is not None:
            query = pair.queries.start - piece.at.start + piece.span.start - document.start
            key = pair.keys.start - others.at.start + others.span.start - document.start
            yield pair._replace(places=Places(number, query, key))


def _by_document(spans: Spans, plan: Plan) -> Iterator[tuple[int, Iterator[Held]]]:
    pieces = groupby(cut(spans, plan.documents), key=lambda piece: piece[0])
    return ((number, (held for _, held in each)) for number, each in pieces)


def _in_document(
    mask: Mask, document: Span, queries: list[Held], keys: list[Held]
) -> Iterator[Pair]:
    if mask == FULL:
        yield Pair(_hull(queries), _hull(keys), FULL)
        return
    for piece in queries:
        seen = (_visible(mask, document, piece, others) for others in keys)
        yield from _joined_keys(pair for pair in seen if pair is not None)


def _hull(pieces: list[Held]) -> Span:
    return Span(pieces[0].at.start, pieces[-1].at.end)


def _visible(mask: Mask, document: Span, queries: Held, keys: Held) -> Pair | None:
    """The queries that see a key, the keys that one of them sees, and the mask between these."""
    k = keys.span.within(mask.keys_of(queries.span, document))
    if k.rows <= 0:
        return None
    q = queries.span.within(mask.queries_of(k, document))
    if q.rows <= 0:
        return None
    return Pair(
        q.moved(queries.at.start - queries.span.start),
        k.moved(keys.at.start - keys.span.start),
        mask.aligned(q, k),
    )


def _joined(
    pairs: Iterable[Pair], follows: Callable[[Pair, Pair], bool], join: Callable[[Pair, Pair], Pair]
) -> Iterator[Pair]:
    """Join each pair with the one before, if it follows it."""
    last: Pair | None = None
    for pair in pairs:
        if last is not None and follows(last, pair):
            pair = join(last, pair)
        elif last is not None:
            yield last
        last = pair
    if last is not None:
        yield last


def _joined_keys(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Join keys that lie behind others which the same queries see in full: masks are aligned at
    the last key."""

    def follows(last: Pair, pair: Pair) -> bool:
        seen_in_full = last.mask == FULL and pair.mask.left is None
        adjacent = last.queries == pair.queries and last.keys.end == pair.keys.start
        return seen_in_full and adjacent

    return _joined(
        pairs, follows, lambda last, pair: pair._replace(keys=Span(last.keys.start, pair.keys.end))
    )


def _joined_queries(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Join neighbouring queries that see all of the same keys."""

    def follows(last: Pair, pair: Pair) -> bool:
        seen_in_full = last.mask == pair.mask == FULL
        adjacent = last.keys == pair.keys and last.queries.end == pair.queries.start
        return seen_in_full and adjacent

    return _joined(
        pairs,
        follows,
        lambda last, pair: pair._replace(queries=Span(last.queries.start, pair.queries.end)),
    )
