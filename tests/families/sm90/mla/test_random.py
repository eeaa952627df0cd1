# SPDX-License-Identifier: Apache-2.0
"""Random calls of MLA decoding in the emulator."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest

from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.launch.emulation import Settings
from ptx_emulator import SCHEDULES
from tests.devices import ran
from tests.families.sm90.mla.cases import DEFERRED, NARROW, Case
from tests.families.sm90.mla.random_cases import random_case
from tests.random_problems.covering import covering

DRAWN = 72
KERNELS = 5  # of which every run of the tests tries the calls
Call = tuple[HopperMlaKernelConfig, Case]


def drawn(seed: int) -> Call:
    case = random_case(seed, most_keys=400, most_batch=3)
    if seed % 3 == 0:
        case = replace(case, split_keys=0, ctas=1 + seed % 7)
    return DEFERRED if seed % 2 else NARROW, case


def kernels(call: Call) -> list[str]:
    config, case = call
    return [step.unit.name for step in case.make(config.d_v).plan(config).recipe.steps]


def features(call: Call) -> frozenset[str]:
    config, case = call
    shape = {"heads": case.heads > 64, "tiles": case.seq_q * case.heads > 64}
    own = {f.name for f in fields(case)[4:] if getattr(case, f.name) != f.default}
    return frozenset(own | {name for name, has in shape.items() if has} | {str(config)})


@cache
def calls() -> list[list[Call]]:
    return covering(map(drawn, range(DRAWN)), kernels, features)


def run(group: list[Call]) -> None:
    for number, (config, case) in enumerate(group):
        made = case.make(config.d_v)
        settings = Settings(SCHEDULES[number % len(SCHEDULES)], number)
        made.assert_right(*ran(made.plan(config), made.call, settings))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KERNELS))
def test_random_calls_are_right(number: int) -> None:
    run(calls()[number])


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(4))
def test_calls_of_the_other_kernels_are_right(number: int) -> None:
    for group in calls()[KERNELS + number :: 4]:
        run(group)
