# SPDX-License-Identifier: Apache-2.0
"""Many random problems on few kernels: what is compiled is chosen for what its problems have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

Problem = TypeVar("Problem")
Features = Callable[[Problem], frozenset[str]]
Pair = tuple[str, ...]

MOST = 6  # problems of a kernel


def covering(
    problems: Iterable[Problem],
    kernels: Callable[[Problem], Sequence[str]],
    features: Features[Problem],
) -> list[list[Problem]]:
    """Problems by the kernels that they run. First comes the group that has most pairs of features,
    then always the one that has most pairs that no group before it has."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        group = groups.setdefault(tuple(kernels(problem)), [])
        if len(group) < MOST:
            group.append(problem)
    left = {key: pairs_of([group], features) for key, group in groups.items()}
    ordered = []
    while left:
        best = max(left, key=lambda key: len(left[key]))
        seen = left.pop(best)
        ordered.append(groups[best])
        for pairs in left.values():
            pairs -= seen
    return ordered


def pairs_of(groups: Iterable[Sequence[Problem]], features: Features[Problem]) -> set[Pair]:
    """The pairs of features that some problem has."""
    problems = (problem for group in groups for problem in group)
    return {pair for problem in problems for pair in combinations(sorted(features(problem)), 2)}
