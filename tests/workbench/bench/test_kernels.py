# SPDX-License-Identifier: Apache-2.0
"""The kernels of a grid are those that the calls of its points launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
import torch

from flash_attention.arch import DEFAULT_ARCH, MEASURED_ARCH, Arch
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.features import CAUSAL
from flash_attention.choose.heuristic import select_config
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType
from flash_attention.launch import plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import cu_seqlens
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_choice import Part, grid_measured, grid_points
from flash_attention_workbench.bench.kernels import units_of_grid

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


@pytest.mark.parametrize("arch", [MEASURED_ARCH, DEFAULT_ARCH])
@pytest.mark.parametrize("grid", ["random", "backward_random", "decode", "window", "training"])
def test_what_a_gpu_with_as_many_multiprocessors_plans_is_there(
    monkeypatch: pytest.MonkeyPatch, grid: str, arch: Arch
) -> None:
    monkeypatch.setattr(plan, "num_sms_of", lambda index: 132)
    points, measured = grid_points(grid, Part(seed=7, count=12))[:12], grid_measured(grid)
    found = units_of_grid(points, DType.BF16, measured, Setting(arch, 132))
    planned: dict[Unit, None] = {}
    for call in (call for point in points for call in calls_of(point, measured)):
        with suppress(UnsupportedError):
            planned |= dict.fromkeys(s.unit for s in Plan(call, arch=arch).recipe.steps)
    assert found == tuple(planned)
    assert found


def calls_of(point: Point, measured: Measured) -> Iterator[Call | BackwardCall]:
    """What our contenders of a point call, with tensors that nobody has written."""
    case = Case.unwritten(point, DType.BF16)
    q, k, v, out = (torch.empty_like(t, device="cpu") for t in (case.q, case.k, case.v, case.out))
    call = Call(q, k, v, out, **case.keywords)
    if point.lengths:
        starts = cu_seqlens(point.lengths, "cpu")
        call = call._replace(cu_seqlens_q=starts, cu_seqlens_k=starts)
    if measured is Measured.FORWARD:
        yield call
        if point.window:
            yield call._replace(window=None)
        return
    yield call.with_lse()
    lse = torch.empty(*q.shape[:-3], q.shape[-2], q.shape[-3])
    for deterministic in (False, True):
        yield BackwardCall(q, call, lse, deterministic=deterministic)


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


def test_a_problem_that_no_memory_holds_is_planned() -> None:
    huge = Point(d_head=128, causal=True, seq_len=1 << 17, batch=1 << 10, heads=64)
    for measured in (Measured.FORWARD, Measured.BACKWARD, Measured.TANGENT):
        assert units_of_grid([huge], DType.BF16, measured, WITHOUT_TABLES)


def test_what_is_refused_has_no_kernel() -> None:
    """There are no tangents on sm_80, and the forward pass beside them is measured."""
    sm_80 = Setting(DEFAULT_ARCH, 108)
    forward = units_of_grid([SMALL], DType.BF16, Measured.FORWARD, sm_80)
    assert units_of_grid([SMALL], DType.BF16, Measured.TANGENT, sm_80) == forward
    assert len(forward) == 1
