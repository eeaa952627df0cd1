# SPDX-License-Identifier: Apache-2.0
"""The kernels of a grid are those that the calls of its points launch."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from flash_attention.arch import DEFAULT_ARCH, MEASURED_ARCH
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.features import CAUSAL
from flash_attention.call.tangent_call import TangentCall
from flash_attention.choose.heuristic import select_config
from flash_attention.compile.unit import Unit
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType
from flash_attention.launch import plan
from flash_attention.launch.plan import Plan
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_choice import Part, grid_measured, grid_points
from flash_attention_workbench.bench.kernels import calls_of, units_of_grid

H200 = Setting(MEASURED_ARCH, 132, device="NVIDIA H200")
WITHOUT_TABLES = Setting(MEASURED_ARCH, 132)
SMALL = Point(d_head=64, causal=True, seq_len=96, batch=2, heads=4, heads_k=2)


def names(units: Iterable[Unit]) -> list[str]:
    return [unit.name for unit in units]


def test_a_point_of_gradients_has_both_passes_and_both_modes() -> None:
    of = GradientCase.of(SMALL, DType.BF16, Measured.BACKWARD)
    plans = [Plan(of.call(mode), arch=MEASURED_ARCH) for mode in (False, True)]
    forward = Plan(of.call().call.with_lse(), arch=MEASURED_ARCH)
    wanted = [step.unit for each in (forward, *plans) for step in each.recipe.steps]
    for measured in (Measured.BACKWARD, Measured.TRAINING):
        found = units_of_grid([SMALL], DType.BF16, measured, Setting(MEASURED_ARCH, 2))
        assert found == tuple(dict.fromkeys(wanted))


@pytest.mark.parametrize("grid", ["random", "backward_random", "decode", "window"])
def test_what_a_gpu_with_as_many_multiprocessors_plans_is_there(
    monkeypatch: pytest.MonkeyPatch, grid: str
) -> None:
    monkeypatch.setattr(plan, "num_sms_of", lambda index: 132)
    points, measured = grid_points(grid, Part(seed=7, count=12)), grid_measured(grid)
    found = units_of_grid(points, DType.BF16, measured, WITHOUT_TABLES)
    planned = [
        step.unit
        for point in points
        for call in calls_of(point, DType.BF16, measured)
        for step in Plan(call, arch=MEASURED_ARCH).recipe.steps
    ]
    assert found == tuple(dict.fromkeys(planned))
    assert len(found) > 1


def test_tables_choose_for_a_gpu_that_is_not_here() -> None:
    points = grid_points("fa3", Part())
    found = units_of_grid(points, DType.BF16, Measured.FORWARD, H200)
    assert set(found) != set(units_of_grid(points, DType.BF16, Measured.FORWARD, WITHOUT_TABLES))
    both = units_of_grid(points, DType.BF16, Measured.FORWARD, H200, heuristic=True)
    without = units_of_grid(points, DType.BF16, Measured.FORWARD, WITHOUT_TABLES)
    assert set(both) == {*found, *without}


def test_configs_are_those_of_their_head_dimension_and_pass() -> None:
    config = select_config(SMALL.problem(DType.BF16), DEFAULT_ARCH)
    wider = Point(d_head=128, causal=True, seq_len=96, batch=2, heads=4)
    found = units_of_grid([SMALL, wider], DType.BF16, Measured.BACKWARD, WITHOUT_TABLES, [config])
    assert [name for name in names(found) if name.startswith(config.kernel_name())] == [
        unit_of(config, CAUSAL).name
    ]


def test_a_point_with_a_window_is_measured_without_it_too() -> None:
    point = Point(d_head=64, causal=True, seq_len=256, batch=1, heads=2, window=64)
    calls = [
        call for call in calls_of(point, DType.FP16, Measured.FORWARD) if isinstance(call, Call)
    ]
    assert [call.window for call in calls] == [(63, 0), None]


def test_tangents_and_gradients_are_calls_of_their_own() -> None:
    assert [type(call) for call in calls_of(SMALL, DType.FP16, Measured.TANGENT)][1:] == [
        TangentCall
    ]
    gradients = list(calls_of(SMALL, DType.FP16, Measured.BACKWARD))[1:]
    assert [isinstance(call, BackwardCall) and call.deterministic for call in gradients] == [
        False,
        True,
    ]


def test_what_is_refused_has_no_kernel() -> None:
    """There are no tangents on sm_80, and the forward pass beside them is measured."""
    sm_80 = Setting(DEFAULT_ARCH, 108)
    forward = units_of_grid([SMALL], DType.BF16, Measured.FORWARD, sm_80)
    assert units_of_grid([SMALL], DType.BF16, Measured.TANGENT, sm_80) == forward
    assert len(forward) == 1
