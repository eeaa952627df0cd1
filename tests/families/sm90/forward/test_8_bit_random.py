# SPDX-License-Identifier: Apache-2.0
"""Random calls with keys and values of 8 bits, in the emulator and on a Hopper GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import HopperFp8KernelConfig
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.devices import on_devices, ran
from tests.families.sm90.forward.cases_8_bit import MOST_RMS, assert_right
from tests.families.sm90.forward.random_8_bit import random_case
from tests.families.sm90.fp8.cases import MOST_RMS as OF_8_BITS
from tests.gate import one_in


def most_rms(plan: Plan) -> float:
    """The largest relative error, which is larger if weights have 8 bits, too."""
    return OF_8_BITS if isinstance(plan.config, HopperFp8KernelConfig) else MOST_RMS


SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"most_keys": 400, "most_queries": 150, "most_batch": 3},
    "cuda": {"most_keys": 4000, "most_queries": 1500, "most_batch": 6},
}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "device"), on_devices(one_in(3, range(18)), range(18, 200)))
def test_random_calls_are_right(seed: int, device: str) -> None:
    call = random_case(seed, **SIZES[device]).call(device)
    plan, settings = Plan(call), Settings(SCHEDULES[seed % len(SCHEDULES)], seed)
    out, lse = ran(plan, call, settings)
    assert_right(call, out, lse, most_rms(plan))
    if device == "cuda":
        assert torch.equal(ran(plan, call)[0], out)
