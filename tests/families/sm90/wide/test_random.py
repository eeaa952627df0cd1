# SPDX-License-Identifier: Apache-2.0
"""Random problems of wide heads in the emulator."""

from __future__ import annotations

import pytest

from tests.families.sm90.wide.random_problems import wide_problem
from tests.random_problems.call import make, verdict_of
from tests.random_problems.draw import SMALL


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_problems_are_right(seed: int) -> None:
    problem = wide_problem(seed, SMALL)
    assert verdict_of(make(problem)).wrong == [], problem
