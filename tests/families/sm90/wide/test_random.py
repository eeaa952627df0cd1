# SPDX-License-Identifier: Apache-2.0
"""Random problems of wide heads in the emulator."""

from __future__ import annotations

from functools import cache

import pytest

from tests.families.sm90.wide.random_problems import wide_problem
from tests.random_problems.call import make, verdict_of
from tests.random_problems.covering import covering
from tests.random_problems.draw import SMALL
from tests.random_problems.problem import RandomProblem

DRAWN = 48
TRIED = 4  # of these, in every run of the tests


@cache
def problems() -> list[RandomProblem]:
    """Hardly two share a kernel; first come those that have most in common with the others."""

    def kernels(problem: RandomProblem) -> list[str]:
        return [step.unit.name for step in make(problem).plan().recipe.steps]

    drawn = (wide_problem(seed, SMALL) for seed in range(DRAWN))
    return [p for group in covering(drawn, kernels, RandomProblem.features) for p in group]


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [n if n < TRIED else pytest.param(n, marks=pytest.mark.exhaustive) for n in range(DRAWN)],
)
def test_random_problems_are_right(number: int) -> None:
    problem = problems()[number]
    assert verdict_of(make(problem)).wrong == [], problem
