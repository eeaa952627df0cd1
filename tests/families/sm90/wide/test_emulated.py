# SPDX-License-Identifier: Apache-2.0
"""Kernels for wide heads: right numbers, and nothing found by the emulator, in every order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.decode_cases import DECODE_CASES, DecodeCase
from tests.devices import of_dtypes, on_devices, ran
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
from tests.feature_cases import Case, emulated
from tests.gate import one_in

ORDERS = [
    (schedule, seed)
    for schedule in SCHEDULES
    if schedule != "lockstep"
    for seed in range(2 if schedule == "random" else 1)
]
BY_NAME = {case.name: case for case in CASES}
FOUR_HEADS = Case("", 3, 700, batch=2, heads=8, heads_k=2, causal=True)


def name_of(case: Case | DecodeCase) -> str:
    return str(case.name)


@pytest.mark.parametrize(("case", "device"), on_devices(one_in(5, CASES, id_of=name_of)))
def test_the_output_and_its_lse_are_right(case: Case, device: str, schedule: str) -> None:
    made = case.make(device)
    call = made.call(return_lse=True)
    made.assert_right(*ran(Plan(call, holding(case)), call, Settings(schedule)))


LONG = [
    Case(
        f"d {d} and d_v {d_v}, {seq} rows, causal {causal}",
        seq,
        seq,
        d,
        d_v,
        4,
        2,
        2,
        causal=causal,
    )
    for seq, (d, d_v), causal in product(
        (1000, 4096), ((512, 512), (320, 320), (512, 256), (384, 512)), (False, True)
    )
]
DECODING = [
    Case(f"{queries} queries, {keys} keys", queries, keys, 512, 512, 16, 4, 2, causal=True)
    for queries, keys in product((1, 4), (1024, 8192, 65536))
]


@pytest.mark.parametrize(
    ("case", "dtype", "device"),
    of_dtypes(one_in(2, WIDE_CASES, id_of=name_of), [*LONG, *DECODING]),
)
def test_heads_up_to_512_choose_these_kernels_and_are_right(
    case: Case, dtype: torch.dtype, device: str
) -> None:
    made = case.make(device, dtype)
    call = made.call(return_lse=True)
    plan = Plan(call)
    assert isinstance(plan.config, HopperWideKernelConfig)
    made.assert_right(*ran(plan, call))


@pytest.mark.parametrize(("short", "device"), on_devices(one_in(5, DECODE_CASES, 1, id_of=name_of)))
def test_keys_in_splits_are_right(short: DecodeCase, device: str, schedule: str) -> None:
    made = short.make(device)
    call = short.call(made)._replace(return_lse=True)
    made.assert_right(*ran(Plan(call, holding(short.case)), call, Settings(schedule)))


@pytest.mark.parametrize(("ctas", "device"), on_devices([1, 3, 50], [132]))
def test_stream_k_splits_are_right(ctas: int, device: str, schedule: str) -> None:
    long = replace(FOUR_HEADS, seq_k=3000)
    made = FOUR_HEADS.make() if device == "cpu" else sharp(long.make(device))
    call = made.call(return_lse=True)
    made.assert_right(*ran(stream_k(call, NARROW, ctas), call, Settings(schedule)))


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


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "order"), product(IN_ORDERS, ORDERS))
def test_they_are_right_in_every_order_of_warps(name: str, order: tuple[str, int]) -> None:
    made = BY_NAME[name].make()
    call = made.call(return_lse=True)
    made.assert_right(*ran(Plan(call, NARROW), call, Settings(*order)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ctas", "order"), product([0, 3], ORDERS))
def test_short_queries_are_right_in_every_order(ctas: int, order: tuple[str, int]) -> None:
    made = sharp(FOUR_HEADS.make())
    call = made.call(return_lse=True, split_keys=None if ctas else 128)
    plan = stream_k(call, NARROW, ctas) if ctas else Plan(call, NARROW)
    made.assert_right(*ran(plan, call, Settings(*order)))


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
    assert torch.equal(ran(Plan(alone, NARROW), alone)[0][0], ran(Plan(both, NARROW), both)[0][0])
