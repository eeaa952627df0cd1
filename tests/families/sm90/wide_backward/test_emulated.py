# SPDX-License-Identifier: Apache-2.0
"""Gradients of wide heads, against float64: in the emulator on all schedules, and on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import Wanted
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.emulation import Settings, emulate_backward_plan
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.devices import HOPPER
from tests.families.sm90.backward.cases import Case
from tests.gate import EXHAUSTIVE, in_turn

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {
    "d 512": {"q_lengths": 140, "k_lengths": 300, "d": (512, 512)},
    "d 512, causal": {"q_lengths": 300, "heads": (2, 1), "d": (512, 512), "causal": True},
    "d 384, grouped heads": {"q_lengths": 130, "heads": (4, 2), "d": (384, 384), "causal": True},
    "d 320, three heads of one": {"q_lengths": 70, "heads": (3, 1), "d": (320, 320)},
    "d 264, window": {"q_lengths": 300, "k_lengths": 280, "d": (264, 264), "window": (70, 20)},
    "queries without keys": {
        "q_lengths": 300,
        "k_lengths": 130,
        "d": (264, 264),
        "causal": True,
    },
    "packed": {
        "q_lengths": (70, 0, 150, 3),
        "k_lengths": (70, 5, 150, 0),
        "heads": (2, 1),
        "d": (320, 320),
        "causal": True,
    },
    "packed, window": {
        "q_lengths": (70, 3, 20),
        "k_lengths": (30, 140, 20),
        "d": (264, 264),
        "window": (30, 10),
    },
    "used keys": {
        "q_lengths": 100,
        "k_lengths": 200,
        "batch": 2,
        "d": (264, 264),
        "used": (150, 0),
    },
    "softcap": {
        "q_lengths": 130,
        "k_lengths": 70,
        "d": (264, 264),
        "softcap": 1.0,
        "causal": True,
        "dtype": torch.float16,
    },
    "d 264 and d_v 72": {"q_lengths": 70, "d": (264, 72)},
    "d 40 and d_v 448": {"q_lengths": 70, "d": (40, 448), "causal": True},
    "dq alone": {"q_lengths": 70, "d": (264, 264), "wanted": Wanted(dk=False, dv=False)},
    "dk alone": {"q_lengths": 70, "d": (264, 264), "wanted": Wanted(dq=False, dv=False)},
    "dv alone": {"q_lengths": 70, "d": (264, 264), "wanted": Wanted(dq=False, dk=False)},
}
SELDOM = {"queries without keys", "packed, window", "d 264 and d_v 72", "dk alone"}
RUNS = [
    pytest.param(*run.values, id=run.id, marks=EXHAUSTIVE if run.values[0] in SELDOM else run.marks)
    for run in in_turn(CASES, SCHEDULES)
]


def checked(case: Case, schedule: str) -> Plan:
    """Assert that the kernels compute the gradients of a case, without findings."""
    plan = Plan(case.call)
    assert type(plan.config).__name__ == "HopperWideBackwardKernelConfig"
    emulation = emulate_backward_plan(plan, case.call, Settings(schedule=schedule, seed=1))
    assert list(map(str, emulation.findings)) == []
    case.check(emulation.gradients)
    return plan


@pytest.mark.parametrize(
    ("name", "schedule", "device"),
    [
        *(pytest.param(*run.values, "cpu", id=run.id, marks=run.marks) for run in RUNS),
        *(pytest.param(name, "", "cuda", id=f"{name}-cuda", marks=HOPPER) for name in CASES),
    ],
)
def test_gradients_are_right(name: str, schedule: str, device: str) -> None:
    case = Case(**CASES[name], device=device)
    if device == "cuda":
        case.check(compute_gradients(case.call))
    else:
        checked(case, schedule)


def test_parts_of_the_heads_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    case = Case(500, heads=(2, 2), d=(264, 8), deterministic=True)
    plan = checked(case, "lockstep")
    heads = [step.values.get("part_head") for step in plan.recipe.steps]
    assert heads == [None, 0, 0, 0, 1, 1, 1]
    assert plan.recipe.scratch["ds"] == 1 << 20
    assert "dq_sum" not in plan.recipe.scratch


def test_shares_of_parts_of_the_keys_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    case = Case(600, 430, heads=(1, 1), d=(264, 8), window=(500, 50), deterministic=True)
    plan = checked(case, "random")
    keys = [step.values.get("part_key") for step in plan.recipe.steps]
    assert keys == [None, 0, 0, 0, 256, 256, 256, None]
    assert "dq_sum" in plan.recipe.scratch
