# SPDX-License-Identifier: Apache-2.0
"""Which of many cases every run of the tests tries. `make exhaustive` tries the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.feature_cases import CASES

EXHAUSTIVE = pytest.mark.exhaustive


def one_in(
    step: int, cases: Iterable[Any], place: int = 0, *, id_of: Callable[[Any], str] = str
) -> list[Any]:
    """The parameters of a test, of which every `step`th is always tried, beginning at `place`."""
    return [
        pytest.param(case, id=id_of(case), marks=() if number % step == place else EXHAUSTIVE)
        for number, case in enumerate(cases)
    ]


def in_turn(
    cases: Iterable[Any], ways: Iterable[Any], *, id_of: Callable[[Any], str] = str
) -> list[Any]:
    """The parameters of a test of every case in every way, of which each case is always tried in
    one, the first in the first way, the second in the second."""
    ways = tuple(ways)
    return [
        pytest.param(
            *(case, way),
            id=f"{id_of(case)}-{way}",
            marks=() if number % len(ways) == turn else EXHAUSTIVE,
        )
        for number, case in enumerate(cases)
        for turn, way in enumerate(ways)
    ]


def third_of_features(place: int) -> list[Any]:
    """Every third of the feature cases. Of three kernels that differ in `place`, one tries each,
    and random problems try their pairs on all."""
    return one_in(3, CASES, place, id_of=lambda case: str(case.name))
