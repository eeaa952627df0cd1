# SPDX-License-Identifier: Apache-2.0
"""A point of the grid of functions: on a CPU with made-up times, and measured on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.files import write_record
from flash_attention_workbench.bench import function_run
from flash_attention_workbench.bench.function_case import (
    BUILT_IN,
    OURS,
    WITHOUT_BIAS,
    FunctionCase,
    FunctionJudge,
)
from flash_attention_workbench.bench.function_run import (
    FunctionRow,
    How,
    load_functions,
    measure_function,
    summary,
)
from flash_attention_workbench.bench.functions import FUNCTIONS, KINDS, PASSES, FunctionPoint
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.peers.flex_functions import FLEX, compiled_flex
from flash_attention_workbench.bench.timing import Contender
from tests.workbench.bench.made_up_times import made_up_times

CPU = torch.device("cpu")
TIMES = {OURS: 0.5, BUILT_IN: 0.4, FLEX: 1.0}  # milliseconds
POINT = FunctionPoint("alibi_causal", 64, 64, 2, 3)
BACKWARD = replace(POINT, measured=Measured.BACKWARD)


@pytest.fixture(autouse=True)
def made_up_clock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") is None:
        timed = made_up_times(TIMES.__getitem__)

        def spun(contenders: Any, *, spin_cycles: int, **keywords: Any) -> Any:
            return timed(contenders, **keywords)

        monkeypatch.setattr(function_run, "time_in_turn", spun)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", KINDS)
def test_all_contenders_are_right(name: str) -> None:
    row = measure_function(replace(POINT, function=name), How(CPU))
    names = {OURS, FLEX} | ({BUILT_IN} if KINDS[name].built_in else set())
    assert row.ms == {name: TIMES[name] for name in names}
    assert (row.ok, row.refused, row.note) == (True, {}, "")
    assert row.of_flex == 2
    assert row.of_built_in == (1.25 if BUILT_IN in names else None)
    judged = names if KINDS[name].score is None else {OURS, FLEX}
    assert row.error_ratio.keys() == judged
    assert "hopper" in row.config


def test_work_is_that_of_seen_keys() -> None:
    row = measure_function(POINT, How(CPU, flex=False))
    flop = 4 * 2 * 3 * (64 * 65 // 2) * 64
    assert row.tflops == pytest.approx(flop / 0.5e-3 * 1e-12)
    back = measure_function(BACKWARD, How(CPU, flex=False))
    assert back.tflops == pytest.approx(2.5 * flop / 0.5e-3 * 1e-12)


def test_gradients_of_ours_are_right() -> None:
    for name in ("alibi_causal", "documents", "additive_bias"):
        row = measure_function(replace(BACKWARD, function=name), How(CPU))
        assert row.ms == {OURS: 0.5, BUILT_IN: 0.4}, row.refused
        assert "backward on CPU" in row.refused[FLEX]
        assert "backward" in row.config


def test_a_wrong_result_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(spoil: Callable[[Any], object]) -> None:
        right = FunctionCase.contender

        def contender(case: FunctionCase, name: str) -> Contender:
            made = right(case, name)

            def run() -> Any:
                result = made.run()
                if name == OURS:
                    spoil(result)
                return result

            return replace(made, run=run)

        monkeypatch.setattr(FunctionCase, "contender", contender)

    with monkeypatch.context() as monkeypatch:
        spoiled(lambda out: out[1, 5, 2].fill_(math.nan))
        row = measure_function(POINT, How(CPU))
        assert (row.ok, row.tflops, row.of_flex) == (False, None, None)
        assert row.refused[OURS].startswith("wrong out: max error nan at (1, 5, 2, 0)")
        assert summary([row])[0].startswith("alibi_causal, 2 x 64, d 64, forward: ours: wrong")
    with monkeypatch.context() as monkeypatch:
        spoiled(lambda gradients: gradients[1][0, 3, 1].add_(1.0))
        row = measure_function(BACKWARD, How(CPU, flex=False))
        assert row.refused[OURS].startswith("wrong dk: max error")


def test_checked_heads_keep_their_slopes() -> None:
    point = replace(POINT, heads=4)
    case = FunctionCase.of(point)
    judge = case.judge()
    judge_of_some = _some_heads(case)
    assert judge.heads == [0, 1, 2, 3]
    assert judge_of_some.heads == [0, 3]
    out = case.contender(OURS).run()
    assert all(check.ok for check in judge_of_some.check(out).values())
    shifted = out.roll(1, 2)
    assert not any(check.ok for check in judge_of_some.check(shifted).values())
    out[0, 5, 1] = math.nan  # in a head that is not compared
    assert judge_of_some.check(out)["out"].worst_index == (0, 5, 1, 0)
    assert not judge_of_some.check(out)["out"].ok


def _some_heads(case: FunctionCase) -> FunctionJudge:
    from flash_attention_workbench.bench import function_case

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(function_case.CHECKED_SCORES, case.point.measured, 1)
        return case.judge()


def bias_gradient(case: FunctionCase) -> tuple[list[Tensor], Tensor]:
    """The gradients of q, k and v, and of the bias, by autograd in float32."""
    given = [t.transpose(1, 2).float() for t in (case.q, case.k, case.v)]
    assert case.drawn.bias is not None
    leaves = [t.detach().requires_grad_() for t in (*given, case.drawn.bias.float())]
    q, k, v, bias = leaves
    out = torch.softmax(q @ k.transpose(-1, -2) * 64**-0.5 + bias, -1) @ v
    found = torch.autograd.grad(out, leaves, case.do.transpose(1, 2).float())
    return [t.transpose(1, 2).bfloat16() for t in found[:3]], found[3].bfloat16()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_the_gradient_of_a_bias_is_judged() -> None:
    point = replace(BACKWARD, function="additive_bias")
    case = replace(FunctionCase.of(point), has_bias_gradient=True)
    judge = case.judge()
    gradients, dbias = bias_gradient(case)
    checks = judge.check([*gradients, dbias])
    assert list(checks) == ["dq", "dk", "dv", "dbias"]
    assert all(check.ok for check in checks.values()), checks
    wrong = judge.check([*gradients, dbias.roll(1, 0)])
    assert not wrong["dbias"].ok
    dbias[2, 7, 9] = math.nan
    assert math.isnan(judge.check([*gradients, dbias])["dbias"].error)


def test_a_bias_without_a_gradient_is_told() -> None:
    point = replace(BACKWARD, function="additive_bias")
    case = replace(FunctionCase.of(point), has_bias_gradient=False)
    assert case.note == WITHOUT_BIAS
    assert replace(case, has_bias_gradient=True).note == ""
    assert len(case.contender(OURS).run()) == 3


def test_flex_takes_no_bias_that_is_too_large() -> None:
    drawn = FunctionCase.of(replace(POINT, function="additive_bias")).drawn
    large = replace(drawn, bias=torch.empty(16, 16384, 16384, device="meta"))
    with pytest.raises(UnsupportedError, match="4,294,967,296 elements"):
        compiled_flex("additive_bias", large)


def row_of(function: str, ours: float, measured: str = "FORWARD") -> FunctionRow:
    ms = {OURS: ours, BUILT_IN: 1.0, FLEX: 2.0}
    return FunctionRow(function, 64, 1024, 16, 32, measured, "hopper", ms, 500.0, {}, {})


def test_means_are_geometric() -> None:
    told = summary([row_of("causal", 1.0), row_of("window", 4.0)])
    assert told == [
        "causal, forward: 1.000 of the built-in kernel's time (at most 1.000),"
        " 2.00 times as fast as flex (at least 2.00)",
        "window, forward: 4.000 of the built-in kernel's time (at most 4.000),"
        " 0.50 times as fast as flex (at least 0.50)",
        "all functions, forward: 2.000 of the built-in kernel's time (at most 4.000),"
        " 1.00 times as fast as flex (at least 0.50)",
    ]


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    record = {
        **{"device": "GPU", "date": "2026-11-18", "commit": "abc", "command": "bench"},
        **{"repeats": 25, "l2": "cold", "grid": FUNCTIONS},
        **{"rows": [asdict(row_of("causal", 1.0))], "plans_ms": {"causal": {"16384": 0.01}}},
        "first_calls": {OURS: {"new function": {"import": 30.0}}},
    }
    path = tmp_path / "functions.json"
    write_record(path, record)
    read = load_functions(path)
    assert read.rows == (row_of("causal", 1.0),)
    assert read.plans_ms == {"causal": {"16384": 0.01}}
    assert read.first_calls == {OURS: {"new function": {"import": 30.0}}}
    write_record(path, record | {"grid": "decode"})
    with pytest.raises(UnsupportedError, match="'functions' is needed"):
        load_functions(path)


@pytest.mark.gpu
@pytest.mark.parametrize("words", PASSES)
@pytest.mark.parametrize("name", KINDS)
def test_a_point_is_timed_on_a_gpu(name: str, words: str) -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    point = FunctionPoint(name, 128, 1024, 2, 4, PASSES[words])
    row = measure_function(point, How(gpu, repeats=3))
    assert row.ok, row.refused
    assert FLEX in row.ms, row.refused
    assert all(0 < ms < 10 for ms in row.ms.values())
