# SPDX-License-Identifier: Apache-2.0
"""The tasks of a rank compute every pair of a query and a key that it sees, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, make_plan, seen
from flash_attention.distributed.spans import Span, Spans, common, joined
from flash_attention.distributed.tasks import Task, halves, tasks_of
from tests.distributed.sequences import masks, pairs_of, plans, rows

CAUSAL = Mask(None, 0)


def sequences(task: Task) -> Iterator[tuple[Span, Span]]:
    if task.packed is None:
        yield task.queries, task.keys
        return
    for q, k in zip(*map(pairwise, task.packed), strict=True):
        yield Span(*q).moved(task.queries.start), Span(*k).moved(task.keys.start)


def computed(task: Task) -> Iterator[tuple[int, int]]:
    """The places of the pairs that `attention` computes, aligned at the ends of sequences."""
    left, right = task.mask
    assert left is None or left >= 0
    assert right is None or right >= 0
    for queries, keys in sequences(task):
        for query in range(queries.rows):
            at = query + keys.rows - queries.rows
            for key in range(keys.rows):
                if (left is None or key >= at - left) and (right is None or key <= at + right):
                    yield queries.start + query, keys.start + key


@given(plans, masks, st.booleans(), st.booleans(), st.data())
def test_every_visible_pair_is_computed_once(
    plan: Plan, mask: Mask, may_pack: bool, gathered: bool, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, plan.ranks - 1))
    every = range(plan.ranks)
    sources = list(every) if gathered else [data.draw(st.sampled_from(every))]
    held = joined(span for source in sources for span in plan.pieces[source])
    keys: Spans = common(seen(plan, mask, rank), held)
    queries = rows(plan.pieces[rank])
    found = Counter(
        (queries[query], rows(keys)[key])
        for task in tasks_of(plan, mask, plan.pieces[rank], keys, may_pack)
        for query, key in computed(task)
    )
    assert found == Counter(pair for s in sources for pair in pairs_of(plan, mask, rank, s))
    assert may_pack or all(
        task.packed is None
        for task in tasks_of(plan, mask, plan.pieces[rank], keys, may_pack=False)
    )


@given(plans, masks, st.booleans(), st.data())
def test_sequences_with_places_follow_each_other_in_their_document(
    plan: Plan, mask: Mask, may_pack: bool, data: st.DataObject
) -> None:
    rank, source = (data.draw(st.integers(0, plan.ranks - 1)) for _ in range(2))
    keys = common(seen(plan, mask, rank), plan.pieces[source])
    tasks = tuple(tasks_of(plan, mask, plan.pieces[rank], keys, may_pack, placed=True))
    found: Counter[tuple[int, int]] = Counter()
    for task in sum(halves(tasks), ()):
        for sequence, places in zip(sequences(task), task.places, strict=True):
            first_q, first_k = (plan.documents[places.document] + at for at in places[1:])
            alone = Task(*sequence, task.mask)
            for query, key in computed(alone):
                q, k = first_q + query - sequence[0].start, first_k + key - sequence[1].start
                assert (q, k) == (rows(plan.pieces[rank])[query], rows(keys)[key])
                found[q, k] += 1
    assert found == Counter(pairs_of(plan, mask, rank, source))


def test_a_round_of_the_zigzag_ring_is_one_call() -> None:
    plan = make_plan(64, 4, causal=True)
    for rank in range(4):
        for source in range(4):
            keys = common(seen(plan, CAUSAL, rank), plan.pieces[source])
            tasks = tasks_of(plan, CAUSAL, plan.pieces[rank], keys, may_pack=False)
            assert len(tasks) == (1 if rank != source or rank == 3 else 2)


def test_whole_documents_are_one_packed_call() -> None:
    plan = make_plan([7] * 30, 1, causal=True)
    (task,) = tasks_of(plan, CAUSAL, plan.pieces[0], plan.pieces[0], may_pack=True)
    assert task.packed is not None
    assert task.packed.starts_q == task.packed.starts_k == tuple(range(0, 211, 7))
    assert task.mask == CAUSAL


@given(plans, masks, st.booleans(), st.data())
def test_halves_compute_every_pair_once(
    plan: Plan, mask: Mask, may_pack: bool, data: st.DataObject
) -> None:
    held = plan.pieces[data.draw(st.integers(0, plan.ranks - 1))]
    tasks = tuple(tasks_of(plan, mask, held, held, may_pack))
    opening, closing = halves(tasks)
    pairs = Counter(pair for task in tasks for pair in computed(task))
    assert Counter(pair for task in opening + closing for pair in computed(task)) == pairs


def test_a_single_task_is_halved_by_its_queries() -> None:
    whole = Task(Span(2, 9), Span(0, 7), Mask())
    assert halves((whole,)) == (
        (whole._replace(queries=Span(2, 5)),),
        (whole._replace(queries=Span(5, 9)),),
    )
    causal = whole._replace(mask=CAUSAL)
    assert halves((causal,)) == (
        (causal._replace(queries=Span(2, 5), keys=Span(0, 3)),),
        (causal._replace(queries=Span(5, 9)),),
    )
    ahead = whole._replace(mask=Mask(3, None))
    assert halves((ahead,)) == ((ahead,), ())
    assert halves((causal, whole)) == ((causal,), (whole,))
