# SPDX-License-Identifier: Apache-2.0
"""Making a problem that fails as small as it can be and still fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.random_problems.problem import (
    FEATURES,
    SIMPLER,
    RandomProblem,
    first_entries,
    fitted,
    halved,
)

TRIES = 300
LONGER = ("cut blocks", "another d", "more keys than queries", "more queries than keys")
"""Features that a problem loses by growing."""


def shrink(
    problem: RandomProblem, fails: Callable[[RandomProblem], bool], tries: int = TRIES
) -> RandomProblem:
    """The smallest problem found that `fails`, one simplification after the other."""
    seen = {problem}
    while True:
        for simpler in _simpler(problem):
            if simpler in seen:
                continue
            seen.add(simpler)
            if len(seen) > tries:
                return problem
            if fails(simpler):
                problem = simpler
                break
        else:
            return problem


def failing_alike(
    wrong: Sequence[str], wrong_with: Callable[[RandomProblem], Sequence[str]]
) -> Callable[[RandomProblem], bool]:
    """Whether a problem fails as one did of which `wrong` was said: what comes before a colon."""
    heads = {message.partition(":")[0] for message in wrong}
    return lambda problem: any(m.partition(":")[0] in heads for m in wrong_with(problem))


def _simpler(problem: RandomProblem) -> Iterator[RandomProblem]:
    """Problems that are one step simpler, large steps first."""
    entries = len(problem.lengths_q)
    if entries > 1:
        yield first_entries(problem, entries // 2)
        yield first_entries(problem, entries - 1)
        yield _without_first(problem)
    yield halved(problem)
    for name, simpler in SIMPLER.items():
        if FEATURES[name](problem) and name not in LONGER:
            yield fitted(simpler(problem))
    for field, least in (("heads_k", 1), ("group", 1), ("d", 8), ("d_v", 8)):
        for value in _lower(getattr(problem, field), least):
            yield _with(problem, field, value)
    for field in ("seq_q", "seq_k"):
        yield from _shorter(problem, field)
    if problem.used is not None:
        for entry, count in enumerate(problem.used):
            for value in _lower(count, 0):
                yield replace(problem, used=_put(problem.used, entry, value))


def _without_first(problem: RandomProblem) -> RandomProblem:
    def rest(lengths: int | tuple[int, ...]) -> int | tuple[int, ...]:
        return lengths if isinstance(lengths, int) else lengths[1:]

    return replace(
        problem,
        batch=len(problem.lengths_q) - 1,
        seq_q=rest(problem.seq_q),
        seq_k=rest(problem.seq_k),
        used=None if problem.used is None else problem.used[1:],
    )


def _shorter(problem: RandomProblem, field: str) -> Iterator[RandomProblem]:
    lengths = getattr(problem, field)
    if isinstance(lengths, int):
        for value in _lower(lengths, 0):
            yield fitted(_with(problem, field, value))
        return
    for entry, length in enumerate(lengths):
        for value in _lower(length, 0):
            yield fitted(_with(problem, field, _put(lengths, entry, value)))


def _with(problem: RandomProblem, field: str, value: object) -> RandomProblem:
    changes: dict[str, Any] = {field: value}
    return replace(problem, **changes)


def _lower(value: int, least: int) -> Iterator[int]:
    """Lower numbers, far ones first; those of columns stay multiples of 8."""
    step = 8 if least == 8 else 1
    for lower in (least, value // 2, value - value // 4, value - step):
        lower -= lower % step
        if least <= lower < value:
            yield lower


def _put(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
