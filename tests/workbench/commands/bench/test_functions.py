# SPDX-License-Identifier: Apache-2.0
"""What the grid of functions refuses, prints and writes of made-up measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.launch.plan import Plan
from flash_attention_workbench.bench.clocks import Clocks
from flash_attention_workbench.bench.function_case import FunctionCase
from flash_attention_workbench.bench.function_run import FunctionRow, How, load_functions
from flash_attention_workbench.bench.functions import FunctionPoint, function_points
from flash_attention_workbench.commands.bench import functions
from tests.workbench.bench.made_up_grid import made_up_grid
from tests.workbench.commands.invoke import invoke, refuse

PLANS = {"causal": {"16384": 0.0081}}
GRID = ("bench", "--grid", "functions")


def measured(point: FunctionPoint, how: How) -> FunctionRow:
    ms = {"ours": 0.5, "built-in": 0.4} | ({"flex": 1.0} if how.flex else {})
    return FunctionRow(
        *(point.function, point.d_head, point.seq_len, point.batch, point.heads),
        measured=point.measured.name,
        config="hopper",
        ms=ms,
        tflops=600.0,
        spread={},
        error_ratio={"ours": 0.9},
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FunctionPoint, How]]:
    """A GPU on which every function takes half the time that flex_attention needs; what was asked
    of it."""
    points: list[tuple[FunctionPoint, How]] = []

    def measure(point: FunctionPoint, how: How) -> FunctionRow:
        points.append((point, how))
        return measured(point, how)

    def first(contenders: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
        return {name: {"new function": {"causal, forward": 2345.6}} for name in contenders}

    facts = {name: made_up_grid()[name] for name in ("device", "date", "commit")}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(functions, "describe", lambda device: facts)
    monkeypatch.setattr(functions, "compile_points", lambda points, how: None)
    monkeypatch.setattr(functions, "measure_function", measure)
    monkeypatch.setattr(functions, "plans_ms", lambda how: PLANS)
    monkeypatch.setattr(functions, "first_calls", first)
    monkeypatch.setattr(functions, "read_clocks", lambda device: Clocks(1980, 3201, 400, 50, 0))
    return points


def test_the_whole_grid_is_measured_and_written(
    asked: list[tuple[FunctionPoint, How]], tmp_path: Path
) -> None:
    results = tmp_path / "functions.json"
    told = invoke(*GRID, "--repeats", "7", "--json", str(results))
    assert [point for point, _ in asked] == function_points()
    assert {(how.repeats, how.hot, how.flex) for _, how in asked} == {(7, False, True)}
    stored = load_functions(results)
    assert stored.rows == tuple(measured(*one) for one in asked)
    assert stored.plans_ms == PLANS
    assert stored.first_calls.keys() == {"ours", "flex"}
    assert "all functions, backward: 1.250 of the built-in kernel's time" in told
    assert "2.00 times as fast as flex" in told
    assert "blocks of causal, 16,384 tokens: 0.0081 ms" in told
    assert "flex, new function, causal, forward: 2,345.6 ms" in told


def test_a_part_of_the_grid_is_measured(
    asked: list[tuple[FunctionPoint, How]], tmp_path: Path
) -> None:
    results = tmp_path / "functions.json"
    part = ("--function", "causal,window,plans", "--d-head", "64", "--seq", "1024")
    told = invoke(*GRID, *part, "--pass", "forward", "--peers", "none", "--json", str(results))
    assert [point for point, _ in asked] == function_points(
        ["causal", "window"], [64], [1024], ["forward"]
    )
    assert {how.flex for _, how in asked} == {False}
    stored = load_functions(results)
    assert (stored.plans_ms, stored.first_calls) == (PLANS, {})
    assert stored.command == (
        f"flash-attention {' '.join((*GRID, '--function', part[1], *part[2:]))} --pass forward"
        " --peers none --repeats 25 --cold"
    )
    assert f"again: {stored.command}" in told.replace("\n", " ")
    asked.clear()
    assert "blocks of causal" in invoke(*GRID, "--function", "plans")
    assert asked == []


def test_a_wrong_result_is_an_error(
    asked: list[tuple[FunctionPoint, How]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(point: FunctionPoint, how: How) -> FunctionRow:
        refused = {"ours": "wrong out: max error 1"}
        sizes = (point.function, 64, 1024, 16, 32, "FORWARD", "")
        return FunctionRow(*sizes, {}, None, {}, {}, refused=refused)

    monkeypatch.setattr(functions, "measure_function", wrong)
    told = invoke(*GRID, "--function", "causal", "--seq", "1024", exit_code=1)
    assert "ours: wrong out: max error 1" in told


def test_options_of_other_grids_are_refused(asked: list[tuple[FunctionPoint, How]]) -> None:
    assert "--causal/--full is for other grids" in refuse(*GRID, "--causal")
    assert "--graph is for other grids" in refuse(*GRID, "--graph")
    assert "functions has flex, or none" in refuse(*GRID, "--peers", "cudnn")
    assert "unknown function 'casual'" in refuse(*GRID, "--function", "casual")
    assert "did you mean 'plans'?" in refuse(*GRID, "--function", "plan")
    other = refuse("bench", "--grid", "fa3", "--function", "causal")
    assert "--function is for other grids than fa3" in other
    assert "--pass is for other" in refuse("bench", "--grid", "serving", "--pass", "forward")
    assert asked == []


def test_kernels_of_both_passes_are_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "plan_for", lambda call: Plan(call, arch=ARCHES["sm_90"]))
    case = FunctionCase.of(FunctionPoint("documents", 64, 256, 1, 2))
    names = [unit.name for unit in functions._units(case)]
    assert sum(name.startswith("list_blocks_ofqueries") for name in names) == 2
    assert sum(name.startswith("list_blocks_ofkeys") for name in names) == 1
    assert len({name for name in names if "backward" in name}) >= 2
