# SPDX-License-Identifier: Apache-2.0
"""Kernels for wide heads in the emulator: right numbers, and nothing found, in every order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.decode_cases import DECODE_CASES, DecodeCase
from tests.families.sm90.wide.cases import (
    CASES,
    EVERY_BLOCK,
    FULL_FP16,
    NARROW,
    WIDE_CASES,
    holding,
    sharp,
    stream_k,
)
from tests.feature_cases import Case, emulated, selected
from tests.gate import in_turn, one_in

ORDERS = [
    (schedule, seed)
    for schedule in SCHEDULES
    if schedule != "lockstep"
    for seed in range(2 if schedule == "random" else 1)
]
BY_NAME = {case.name: case for case in CASES}
FOUR_HEADS = Case("", 3, 700, batch=2, heads=8, heads_k=2, causal=True)


def run(plan: Plan, call: Call, settings: Settings | None = None) -> tuple[Tensor, Tensor | None]:
    """The results of a plan, without a finding."""
    result = emulate_plan(plan, call, settings or Settings())
    assert list(map(str, result.findings)) == []
    return result.output, result.lse


@pytest.mark.parametrize("case", one_in(5, CASES, id_of=lambda case: str(case.name)))
def test_the_output_and_its_lse_are_right(case: Case) -> None:
    made = case.make()
    result = emulated(made, holding(case))
    made.assert_right(result.output, result.lse)


@pytest.mark.parametrize("case", one_in(2, WIDE_CASES, id_of=lambda case: str(case.name)))
def test_heads_up_to_512_choose_these_kernels_and_are_right(case: Case) -> None:
    made = case.make()
    config = selected(made)
    assert isinstance(config, HopperWideKernelConfig)
    result = emulated(made, config)
    made.assert_right(result.output, result.lse)


@pytest.mark.parametrize("short", one_in(5, DECODE_CASES, 1, id_of=lambda short: str(short.name)))
def test_keys_in_splits_are_right(short: DecodeCase) -> None:
    made = short.make()
    call = short.call(made)._replace(return_lse=True)
    made.assert_right(*run(Plan(call, holding(short.case)), call))


@pytest.mark.parametrize("ctas", [1, 3, 50])
def test_stream_k_splits_are_right(ctas: int) -> None:
    made = FOUR_HEADS.make()
    call = made.call(return_lse=True)
    made.assert_right(*run(stream_k(call, NARROW, ctas), call))


@pytest.mark.parametrize("config", [NARROW, EVERY_BLOCK], ids=str)
def test_maxima_that_keep_rising_are_followed(config: HopperWideKernelConfig) -> None:
    made = sharp(Case("", 70, 700, heads=1, heads_k=1).make())
    result = emulated(made, config)
    made.assert_right(result.output, result.lse)


def test_fp16_is_right() -> None:
    made = Case("", 65, 130, 512, 512, heads=1, heads_k=1).make(dtype=torch.float16)
    result = emulated(made, FULL_FP16)
    made.assert_right(result.output, result.lse)


IN_ORDERS = (
    "several tiles of several heads",
    "packed",
    "packed queries of a cache, everything at once",
    "a window to both sides",
    "queries of a cache",
)


@pytest.mark.parametrize(("name", "order"), in_turn(IN_ORDERS, ORDERS))
def test_they_are_right_in_every_order_of_warps(name: str, order: tuple[str, int]) -> None:
    made = BY_NAME[name].make()
    call = made.call(return_lse=True)
    made.assert_right(*run(Plan(call, NARROW), call, Settings(*order)))


@pytest.mark.parametrize(("ctas", "order"), in_turn([0, 3], ORDERS))
def test_short_queries_are_right_in_every_order(ctas: int, order: tuple[str, int]) -> None:
    made = sharp(FOUR_HEADS.make())
    call = made.call(return_lse=True, split_keys=None if ctas else 128)
    plan = stream_k(call, NARROW, ctas) if ctas else Plan(call, NARROW)
    made.assert_right(*run(plan, call, Settings(*order)))


def test_nan_reaches_the_rows_that_see_it_and_no_other() -> None:
    made = Case("", 130, 130, heads=1, heads_k=1, causal=True).make()
    k = made.k.clone()
    k[:, 100] = torch.nan
    out = emulated(replace(made, k=k), NARROW).output
    assert out[:, 100:].isnan().all()
    assert not out[:, :100].isnan().any()


def test_splits_of_a_given_length_do_not_depend_on_the_batch() -> None:
    """A sequence has the same bits alone and beside another."""
    both = FOUR_HEADS.make().call(split_keys=128)
    alone = both._replace(q=both.q[:1], k=both.k[:1], v=both.v[:1])
    assert torch.equal(run(Plan(alone, NARROW), alone)[0][0], run(Plan(both, NARROW), both)[0][0])
