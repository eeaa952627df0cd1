# SPDX-License-Identifier: Apache-2.0
"""Gradients of the kernels in the emulator, against float64, on all schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import Wanted
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.emulation import Settings, emulate_backward_plan, emulate_checked
from flash_attention.launch.plan import Plan
from ptx_emulator import SCHEDULES
from tests.devices import HOPPER
from tests.families.sm90.backward.cases import Case, config
from tests.gate import EXHAUSTIVE, in_turn

NO_DQ = Wanted(dq=False)
PACKED = ((70, 3, 20), (30, 140, 20))
SPLIT: dict[str, Any] = {
    "d_head": 256,
    "dq": "workspace",
    "derivative": "exact",
    "schedule": "split",
}
STORED: dict[str, Any] = {"dq": "workspace"}
ORDERED: dict[str, Any] = {"dq": "ordered", "order": "dynamic_8"}

KERNELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (
        {"stages": 1, "dq": "atomic", "ds": 1, "derivative": "exact", "schedule": "serial"},
        {"q_lengths": 200, "heads": (2, 1), "causal": True},
    ),
    "staged": (
        {"dq": "staged", "ds": 1, "derivative": "exact", "schedule": "paired", "order": "one_each"},
        {"q_lengths": 130, "k_lengths": 200},
    ),
    "staged, d_head 64": (
        {"d_head": 64, "dq": "staged", "schedule": "serial", "order": "one_each"},
        {"q_lengths": 200, "d": (64, 40)},
    ),
    "causal": ({}, {"q_lengths": 200, "k_lengths": 300, "heads": (2, 1), "causal": True}),
    "queries without keys": (
        {"schedule": "paired"},
        {"q_lengths": 300, "k_lengths": 130, "d": (40, 96), "causal": True},
    ),
    "window": ({}, {"q_lengths": 200, "window": (50, 30)}),
    "packed": ({}, {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "heads": (2, 1)}),
    "packed, d_head 64": (
        {"d_head": 64},
        {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "d": (64, 64), "causal": True},
    ),
    "used keys": ({}, {"q_lengths": 100, "k_lengths": 200, "batch": 2, "used": (150, 64)}),
    "pairs": ({"d_head": 64, "derivative": "pairs", "schedule": "paired"}, {"q_lengths": 256}),
    "dynamic": (
        {"dtype": "FP16", "ds": 1, "order": "dynamic_2"},
        {"q_lengths": 140, "batch": 3, "causal": True},
    ),
    "packed, dynamic": (
        {"order": "dynamic_2"},
        {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "causal": True},
    ),
    "without dq": (
        {"dq": "none", "ds": 0},
        {"q_lengths": 130, "heads": (2, 1), "causal": True, "wanted": NO_DQ},
    ),
    "stored dS": (
        STORED,
        {"q_lengths": 300, "k_lengths": 200, "heads": (4, 2), "d": (96, 96), "causal": True},
    ),
    "stored dS, d_head 64": ({"d_head": 64, **STORED}, {"q_lengths": 200, "window": (40, 3)}),
    "stored dS, packed": (
        STORED,
        {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "heads": (2, 1), "used": (20, 140, 0)},
    ),
    "in order": (ORDERED, {"q_lengths": 200, "k_lengths": 300, "heads": (2, 1)}),
    "in order, queries without keys": (
        {**ORDERED, "schedule": "paired"},
        {"q_lengths": 300, "k_lengths": 130, "d": (40, 96), "causal": True},
    ),
    "in order, window": (ORDERED, {"q_lengths": 400, "window": (50, 30)}),
    "in order, packed": (
        ORDERED,
        {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "d": (72, 72), "used": (20, 140, 0)},
    ),
    "in order, d_head 64": (
        {**ORDERED, "d_head": 64, "derivative": "pairs", "schedule": "paired"},
        {"q_lengths": 300, "heads": (2, 1), "causal": True},
    ),
    "in order, dynamic": (
        {**ORDERED, "d_head": 64, "order": "dynamic_2"},
        {"q_lengths": 150, "k_lengths": 300, "batch": 2},
    ),
    "d_head 256": (SPLIT, {"q_lengths": 130, "k_lengths": 200, "heads": (2, 1), "d": (256, 200)}),
    "d_head 256, causal": (SPLIT, {"q_lengths": 300, "k_lengths": 200, "causal": True}),
    "d_head 256, packed": (
        {**SPLIT, "derivative": "rounded"},
        {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "heads": (2, 1), "window": (30, 10)},
    ),
    "d_head 256, without dq": (
        {**SPLIT, "dq": "none", "derivative": "pairs", "order": "one_each"},
        {"q_lengths": 200, "causal": True, "wanted": NO_DQ},
    ),
    "softcap": (
        STORED,
        {"q_lengths": 130, "k_lengths": 200, "heads": (2, 1), "causal": True, "softcap": 1.0},
    ),
    "softcap, d_head 64": (
        {"d_head": 64, "tile": "64, 128", "schedule": "paired", "order": "dynamic_8"},
        {"q_lengths": 200, "heads": (2, 1), "window": (60, 20), "softcap": 0.5},
    ),
    "softcap, d_head 256": (
        {**SPLIT, "derivative": "rounded"},
        {"q_lengths": 130, "k_lengths": 100, "softcap": 1.0},
    ),
    "softcap, packed": (
        {"dtype": "FP16", "dq": "atomic", "derivative": "exact", "schedule": "serial"},
        {"q_lengths": PACKED[0], "k_lengths": PACKED[1], "causal": True, "softcap": 2.0},
    ),
    "softcap, pairs": (
        {"d_head": 64, "dq": "none", "ds": 0, "derivative": "pairs", "schedule": "in_place"},
        {"q_lengths": 140, "softcap": 1.0, "wanted": NO_DQ},
    ),
}
SELDOM = {  # cases of what others have one by one
    *("staged, d_head 64", "queries without keys", "packed, d_head 64", "packed, dynamic"),
    *("stored dS, d_head 64", "in order, queries without keys", "in order, window"),
    *("in order, packed", "in order, dynamic", "d_head 256, causal", "d_head 256, packed"),
    *("softcap, packed", "softcap, pairs"),
}
RUNS = [
    pytest.param(*run.values, id=run.id, marks=EXHAUSTIVE if run.values[0] in SELDOM else run.marks)
    for run in in_turn(KERNELS, SCHEDULES)
]


def checked(case: Case, kernel: Any, schedule: str) -> Plan:
    """Assert that a kernel computes the gradients of a case, without findings."""
    plan = Plan(case.call, kernel)
    emulation = emulate_backward_plan(plan, case.call, Settings(schedule=schedule, seed=1))
    assert emulation.findings == ()
    case.check(emulation.gradients)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "schedule", "device"),
    [
        *(pytest.param(*run.values, "cpu", id=run.id, marks=run.marks) for run in RUNS),
        *(pytest.param(name, "", "cuda", id=f"{name}-cuda", marks=HOPPER) for name in KERNELS),
    ],
)
def test_gradients_are_right(name: str, schedule: str, device: str) -> None:
    words, problem = KERNELS[name]
    kernel = config(**words)
    columns = problem.get("d", (kernel.d_head, kernel.d_head))
    given = {**problem, "d": columns, "dtype": kernel.dtype.to_torch_dtype(), "device": device}
    case = Case(**given)
    if device == "cuda":
        case.check(compute_gradients(case.call, kernel))
    else:
        checked(case, kernel, schedule)


@pytest.mark.slow
def test_parts_of_the_heads_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    case = Case(512, 500, batch=2, heads=(2, 1), d=(64, 64), deterministic=True)
    plan = checked(case, config(**STORED), "lockstep")
    assert [step.values.get("part_head") for step in plan.recipe.steps] == [None, 0, 0, 1, 1]
    assert plan.recipe.scratch["ds"] == 1 << 20
    assert "dq_sum" not in plan.recipe.scratch


@pytest.mark.slow
def test_shares_of_parts_of_the_keys_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    case = Case(1024, 300, heads=(2, 1), d=(64, 64), window=(500, 50), deterministic=True)
    plan = checked(case, config(**SPLIT), "random")
    keys = [step.values.get("part_key") for step in plan.recipe.steps]
    assert keys == [None, 0, 0, 256, 256, None]
    assert "dq_sum" in plan.recipe.scratch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "sums"),  # that all splits add to, or one for each split
    [(config(d_head=96, order="dynamic_8"), 1), (config(d_head=96, **ORDERED), 6)],
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=HOPPER)])
def test_splits_of_the_heads_add_up(
    monkeypatch: pytest.MonkeyPatch, device: str, kernel: KernelConfig, sums: int
) -> None:
    family = "flash_attention.families.sm90.backward.family"
    monkeypatch.setattr(f"{family}.head_splits", lambda *_: 6)  # one of which has two heads
    q_lengths, k_lengths = PACKED
    case = Case(q_lengths, k_lengths, heads=(7, 1), d=(96, 72), causal=True, device=device)
    plan = Plan(case.call, kernel)
    assert plan.recipe.arguments.head_splits == 6
    assert plan.recipe.arguments.key_sums == sums
    case.check(plan.run(case.call))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d_head", "asked"),
    [
        (64, {}),
        (128, {}),
        (128, {"deterministic": True}),
        *((d_head, {}) for d_head in (32, 96, 160, 192, 256)),
        (96, {"deterministic": True}),
        *((d_head, {"softcap": 1.0}) for d_head in (64, 96, 128, 256)),
    ],
)
def test_the_heuristic_computes_what_is_asked(d_head: int, asked: dict[str, Any]) -> None:
    case = Case(140, heads=(2, 1), d=(d_head, d_head), causal=True, **asked)
    plan = checked(case, None, "lockstep")
    assert type(plan.config).__name__ == "HopperBackwardKernelConfig"
    assert plan.config.d_head == d_head


@pytest.mark.slow
def test_large_gradients_of_small_probabilities_are_finite_in_half_precision() -> None:
    case = Case(256, d=(64, 64), dtype=torch.float16)
    do, call = case.call.do * 2000, case.call.call
    assert call.out is not None
    call = call._replace(v=call.v * 10, out=call.out * 10)
    large = case.call._replace(do=do, call=call)
    products = torch.einsum("qd,kd->qk", do[0, :, 0].double(), call.v[0, :, 0].double())
    assert float(products.abs().max()) > torch.finfo(torch.float16).max
    plan = Plan(large)
    for name, gradient in emulate_checked(plan, large)._asdict().items():
        assert gradient is None or bool(gradient.isfinite().all()), name
