# SPDX-License-Identifier: Apache-2.0
"""Random calls with keys and values of 8 bits, in the emulator and on a Hopper GPU."""

from __future__ import annotations

import pytest
import torch

from flash_attention import HopperFp8KernelConfig, attention
from flash_attention.call.call import Call
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.families.sm90.forward.cases_8_bit import MOST_RMS, assert_right
from tests.families.sm90.forward.random_8_bit import random_case
from tests.families.sm90.fp8.cases import MOST_RMS as OF_8_BITS
from tests.gate import one_in


def most_rms(call: Call) -> float:
    """The largest relative error, which is larger if weights have 8 bits, too."""
    of_8_bits = isinstance(Plan(call).config, HopperFp8KernelConfig)
    return OF_8_BITS if of_8_bits else MOST_RMS


@pytest.mark.slow
@pytest.mark.parametrize("seed", one_in(3, range(18)))
def test_random_calls_are_right(seed: int) -> None:
    case = random_case(seed, most_keys=400, most_queries=150, most_batch=3)
    call = case.call()
    settings = Settings(SCHEDULES[seed % len(SCHEDULES)], seed)
    result = emulate_plan(Plan(call), call, settings)
    assert list(map(str, result.findings)) == []
    assert_right(call, result.output, result.lse, most_rms(call))


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(200))
def test_random_calls_are_right_on_a_gpu(seed: int) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("8-bit keys and values need sm_90")
    case = random_case(seed, most_keys=4000, most_queries=1500, most_batch=6)
    call = case.call("cuda")
    out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    assert_right(call, out, lse, most_rms(call))
    again, _ = attention(*call[:3], **call.keywords(), return_lse=True)
    assert torch.equal(again, out)
