# SPDX-License-Identifier: Apache-2.0
"""Correct code of everyday patterns: nothing is found on any schedule, and results are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import SCHEDULES
from tests.emulator.annotated import Annotated, kernels_in

IDIOMS = list(kernels_in(Path(__file__).parent / "idioms"))


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: f"{idiom.path.stem}-{idiom.name}")
def test_correct_code_is_not_blamed(idiom: Annotated) -> None:
    for schedule in SCHEDULES:
        result, arrays = idiom.run(schedule)
        assert [str(finding) for finding in result.findings] == [], schedule
        assert eval(idiom.gives, {"np": np, **arrays}), (schedule, arrays)


def test_there_are_many_idioms() -> None:
    assert len({idiom.name for idiom in IDIOMS}) >= 60
