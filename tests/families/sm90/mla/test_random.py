# SPDX-License-Identifier: Apache-2.0
"""Random calls of MLA decoding in the emulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.launch.emulation import Settings, emulate_plan
from ptx_emulator import SCHEDULES
from tests.families.sm90.mla.cases import DEFERRED, NARROW
from tests.families.sm90.mla.random_cases import random_case


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_calls_are_right(seed: int) -> None:
    case = random_case(seed, most_keys=400, most_batch=3)
    if seed % 3 == 0:
        case = replace(case, split_keys=0, ctas=1 + seed % 7)
    made = case.make(NARROW.d_v)
    settings = Settings(SCHEDULES[seed % len(SCHEDULES)], seed)
    config = DEFERRED if seed % 2 else NARROW
    result = emulate_plan(made.plan(config), made.call, settings)
    assert list(map(str, result.findings)) == []
    made.assert_right(result.output, result.lse)
