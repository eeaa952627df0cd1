# SPDX-License-Identifier: Apache-2.0
"""What functions cost beside attention: which kernels plan blocks, and which calls are first."""

from __future__ import annotations

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.launch.plan import Plan
from flash_attention_workbench.bench.function_case import OURS, FunctionCase
from flash_attention_workbench.bench.function_costs import (
    FIRST,
    IMPORT,
    KEPT,
    NEW,
    PLANNED,
    first_calls,
    first_calls_here,
    planning_steps,
    plans_ms,
)
from flash_attention_workbench.bench.function_run import How
from flash_attention_workbench.bench.functions import FunctionPoint
from flash_attention_workbench.bench.peers.flex_functions import FLEX


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        ("causal", ["list_blocks"]),
        ("documents", ["fill_bounds", "list_blocks"]),
        ("alibi_full", []),
    ],
)
def test_the_kernels_that_plan_blocks_are_found(function: str, kernels: list[str]) -> None:
    call = FunctionCase.of(FunctionPoint(function, 128, 512, 1, 2)).forward_call(OURS)
    steps = Plan(call, arch=ARCHES["sm_90"]).recipe.steps
    found = planning_steps(steps)
    assert [step.unit.name[:11] for step in found] == kernels
    assert len(steps) == len(found) + 1
    assert all(step.maps == {} for step in found)


def test_first_calls_are_those_of_every_function_and_pass() -> None:
    found = first_calls_here(OURS, torch.device("cpu"), seq=64, tokens=64)
    named = [
        f"{name}, {words}" for name in ("built-in", *FIRST) for words in ("forward", "backward")
    ]
    assert list(found) == named
    assert all(ms > 0 for ms in found.values())


@pytest.mark.gpu
def test_planning_is_timed_on_a_gpu() -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    found = plans_ms(How(gpu, repeats=3))
    for function in PLANNED:
        assert list(found[function]) == ["16384", "131072"]
        assert all(0 < ms < 5 for ms in found[function].values())
        assert list(found[f"{function}, {FLEX}"]) == ["16384"]


@pytest.mark.gpu
def test_first_calls_are_timed_in_new_processes() -> None:
    found = first_calls((OURS,))[OURS]
    assert found.keys() == {NEW, KEPT}
    for name in FIRST:
        what = f"{name}, forward"
        assert found[KEPT][what] < found[NEW][what]
    assert found[KEPT][IMPORT] > 0
