# SPDX-License-Identifier: Apache-2.0
"""FP8 kernels with packed sequences, in the emulator and on a Hopper GPU."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from flash_attention import HopperFp8KernelConfig
from flash_attention.families.sm90.fp8.args import tiles_keys
from flash_attention.families.sm90.fp8.transpose import step_keys
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.devices import on_devices, ran
from tests.emulator.edits import Edit, compiler, edited_headers
from tests.families.sm90.forward.cases_8_bit import Case
from tests.families.sm90.fp8.cases import assert_right

CAUSAL = (("causal", True),)
BOTH = Case(batch=3, lengths_q=(5, 0, 140), lengths_k=(70, 10, 200), keywords=CAUSAL, q_8_bit=True)
CASES = {
    "q and k": BOTH,
    "d 64": replace(BOTH, d=64, lengths_q=(100, 200, 1), lengths_k=(70, 330, 1), keywords=()),
    "k": Case(200, batch=2, heads=2, d=256, lengths_k=(70, 330), q_8_bit=True),
    "q": Case(seq_k=330, batch=2, heads=2, lengths_q=(130, 40), used=(200, 330), q_8_bit=True),
    "window": replace(BOTH, keywords=(("window", (60, 3)),)),
}
LONG = (1000, 1, 0, 2048, 333)
LARGE = {
    f"long, d {d}": Case(
        batch=5, d=d, lengths_q=LONG, lengths_k=LONG, keywords=CAUSAL, q_8_bit=True
    )
    for d in (64, 128, 256)
}


@pytest.mark.parametrize(("name", "device"), on_devices(CASES, LARGE))
def test_packed_sequences_are_right(name: str, device: str) -> None:
    call = (CASES | LARGE)[name].call(device)
    plan = Plan(call)
    assert device == "cuda" or isinstance(plan.config, HopperFp8KernelConfig)
    assert_right(call, *ran(plan, call, Settings(SCHEDULES[len(name) % len(SCHEDULES)])))


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_they_are_right_in_every_order_of_warps(schedule: str) -> None:
    call = BOTH.call()
    assert_right(call, *ran(Plan(call), call, Settings(schedule)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        Edit("sm90/fp8/args.cuh", " + batch * (args.v_tiles_step - 1)"),
        Edit("sm90/fp8/pages.cuh", "sequence.k_first * args.v_stride.seq", "0"),
    ],
    ids=["sequences overlap", "all have the values of the first"],
)
def test_mistakes_give_wrong_numbers(edit: Edit, tmp_path: Path) -> None:
    call = BOTH.call()
    compile_unit = compiler(edited_headers((edit,), tmp_path))
    result = emulate_plan(Plan(call), call, Settings(), compile_unit=compile_unit)
    with pytest.raises(AssertionError):
        assert_right(call, result.output.nan_to_num(nan=1e9), result.lse)


def test_the_values_of_sequences_have_room_and_do_not_overlap() -> None:
    plan = Plan(BOTH.call())
    assert isinstance(plan.config, HopperFp8KernelConfig)
    step, draw = step_keys(plan.config), random.Random(7)
    for _ in range(100):
        lengths = [draw.randint(0, 300) for _ in range(draw.randint(1, 9))]
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        problem = replace(plan.problem, batch=len(lengths), total_k=sum(lengths))
        first = [(start + i * (step - 1)) // step * step for i, start in enumerate(starts)]
        ends = [at + -(-n // step) * step for at, n in zip(first, lengths, strict=True)]
        assert all(end <= at for end, at in zip(ends, first[1:], strict=False))
        assert ends[-1] <= tiles_keys(step, problem)
