# SPDX-License-Identifier: Apache-2.0
"""A planted mistake whose text the headers no longer have is told, also if it is left out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.emulator.edits import Edit
from tests.emulator.gate import first_of_each_kind


@dataclass(frozen=True)
class Mistake:
    edit: Edit
    name: str = "a mistake"
    caught_by: str = "race"


THERE = Mistake(Edit("dtype.cuh", "#pragma once"))


def test_all_but_the_first_of_a_kind_are_left_out() -> None:
    first, second = first_of_each_kind([THERE, THERE])
    assert not first.marks
    assert second.marks == (pytest.mark.mutations,)


def test_a_text_that_is_gone_is_told_of_a_mistake_that_is_left_out() -> None:
    gone = Mistake(Edit("dtype.cuh", "#pragma never"))
    with pytest.raises(ValueError, match=r"dtype\.cuh has no occurrence 0 of '#pragma never'"):
        first_of_each_kind([THERE, gone])
