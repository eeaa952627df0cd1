# SPDX-License-Identifier: Apache-2.0
"""Gradients of the sm_80 kernels in the emulator: right, and nothing is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import Wanted
from flash_attention.call.dtype import DType
from flash_attention.families.sm80.backward.rungs import STEPS, base
from flash_attention.families.sm80.backward.space import sample_configs
from ptx_emulator import SCHEDULES
from tests.backward_cases import assert_right, backward_of, emulated_backward, flash_config
from tests.feature_cases import CASES, Case
from tests.gate import in_turn, third_of_features

pytestmark = pytest.mark.slow  # left out of `make quick`

CAUSAL = Case("causal", 70, 150, heads=2, heads_k=1, causal=True)


@pytest.mark.parametrize("case", third_of_features(2))
def test_every_feature_has_gradients(case: Case) -> None:
    number = CASES.index(case)
    case = replace(case, heads=2, heads_k=1)
    call = backward_of(
        case.make(seed=number),
        Wanted(dsinks=case.sinks),
        deterministic=number % 2 == 1,
        with_dlse=number % 3 == 0,
    )
    assert_right(emulated_backward(call, flash_config(call, "sm_80")).gradients, call)


@pytest.mark.parametrize(
    ("arch", "d_head", "d_v"),
    [
        *(("sm_86", d_head, d_head) for d_head in (8, 128, 192, 256)),
        ("sm_90", 64, 64),
        ("sm_90", 128, 72),
    ],
)
def test_every_head_dimension_has_gradients(arch: str, d_head: int, d_v: int) -> None:
    case = Case("", 70, 90, d_head, d_v, heads=2, heads_k=1, causal=True)
    dtype = torch.float16 if d_v == 72 else torch.bfloat16  # whose other kernels more tests have
    call = backward_of(case.make(dtype=dtype, seed=d_head), deterministic=d_v == 192)
    result = emulated_backward(call, flash_config(call, arch), arch=arch, schedule="random")
    assert_right(result.gradients, call)


@pytest.mark.parametrize(("deterministic", "schedule"), in_turn([False, True], SCHEDULES[1:]))
def test_no_order_of_the_warps_is_wrong(deterministic: bool, schedule: str) -> None:
    call = backward_of(replace(CAUSAL, d_qk=96, d_v=96).make(), deterministic=deterministic)
    config = flash_config(call, "sm_80")
    assert_right(emulated_backward(call, config, schedule=schedule).gradients, call)


@pytest.mark.parametrize("rung", range(len(STEPS) + 1))
def test_every_rung_is_right(rung: int) -> None:
    config = base(DType.BF16, 64)
    for _, _, change in STEPS[:rung]:
        config = replace(config, **change)
    call = backward_of(CAUSAL.make())
    schedule = SCHEDULES[rung % len(SCHEDULES)]
    assert_right(emulated_backward(call, config, schedule=schedule).gradients, call)


@pytest.mark.parametrize(
    ("wanted", "registers"),
    [
        (Wanted(dq=False), True),
        (Wanted(dq=False, dk=False), False),
        (Wanted(dq=False, dv=False), True),
        (Wanted(dv=False), False),
    ],
)
def test_gradients_that_are_not_wanted_are_left_out(wanted: Wanted, registers: bool) -> None:
    config = replace(base(DType.BF16, 64), register_operands=registers)
    call = backward_of(CAUSAL.make(), wanted)
    assert_right(emulated_backward(call, config).gradients, call)


def test_random_configs_are_right() -> None:
    valid = (c for c in sample_configs(11, ARCHES["sm_90"]) if c.d_head <= 128)
    for seed, config in enumerate(islice(valid, 3)):
        case = Case("", 90 + seed, 77, config.d_head, config.d_head - 8, 2, 1, window=(40, 5))
        made = case.make(dtype=config.dtype.to_torch_dtype(), seed=seed)
        call = backward_of(made, deterministic=seed % 2 == 1)
        assert_right(emulated_backward(call, config, arch="sm_90").gradients, call)
