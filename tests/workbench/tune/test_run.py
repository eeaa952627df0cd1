# SPDX-License-Identifier: Apache-2.0
"""A run over many problems: within its budget, interrupted at will, nothing measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.arch import ARCHES, Arch
from flash_attention.call.backward_call import Wanted
from flash_attention.call.features import Features
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem
from flash_attention.choose.table import Entry
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import family_of
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.kernel_configs import SET_VARIABLE, DType, KernelConfig
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.tune import run, store
from flash_attention_workbench.tune.bench import Bench
from flash_attention_workbench.tune.candidates import heuristic, starting_points
from flash_attention_workbench.tune.kernels import kernel_digest
from flash_attention_workbench.tune.measurer import Failure
from flash_attention_workbench.tune.points import problems_of
from flash_attention_workbench.tune.run import BUDGET_S, Progress, Run, check_tunable, tune
from flash_attention_workbench.tune.search import QUICK, THOROUGH
from flash_attention_workbench.tune.store import Store
from tests.gate import EXHAUSTIVE
from tests.workbench.tune.made_up import (
    COMPILE_S,
    MACHINE,
    SM90,
    MadeUpMeasurer,
    dense,
    dense_backward,
    dense_tangent,
    true_backward_time,
    true_tangent_time,
    true_time,
)
from tests.workbench.tune.simulated import Costs, SimulatedMachine

pytestmark = pytest.mark.slow  # left out of `make quick`

PROBLEMS = [dense(seq, causal) for causal in (False, True) for seq in (1024, 2048, 4096)]


def entries(
    measurer: MadeUpMeasurer,
    path: Path | None,
    budget: float = 1e6,
    problems: list[DenseProblem] = PROBLEMS,
) -> list[Entry]:
    bench = Bench(measurer, Store(path, MACHINE))
    return list(Run(problems, bench, budget=budget).entries())


def test_every_problem_gets_an_entry_that_beats_the_heuristic() -> None:
    found = entries(MadeUpMeasurer(), None)
    assert sorted(entry.problem for entry in found) == sorted(PROBLEMS)
    for entry in found:
        own = heuristic(entry.problem, SM90)
        assert entry.heuristic == own.short_form()
        assert entry.gain == pytest.approx(true_time(own) / true_time(entry.config), rel=0.01)
        assert entry.gain > 1.04


def test_a_second_run_of_the_same_command_measures_nothing(tmp_path: Path) -> None:
    first = entries(MadeUpMeasurer(), tmp_path / "store")
    again = MadeUpMeasurer()
    assert entries(again, tmp_path / "store") == first
    assert (again.lineups, again.compiled_configs) == ([], [])


def test_a_second_run_that_was_cut_short_measures_nothing_unless_given_more(tmp_path: Path) -> None:
    budget = 60 * COMPILE_S * len(PROBLEMS)
    first = entries(MadeUpMeasurer(), tmp_path / "store", budget)
    assert len(first) == len(PROBLEMS)
    again = MadeUpMeasurer()
    assert entries(again, tmp_path / "store", budget) == first
    assert again.lineups == []
    more = MadeUpMeasurer()
    entries(more, tmp_path / "store", 100 * budget)
    assert more.lineups != []


@pytest.mark.parametrize("budget", [5.0, 20.0, 60.0])
def test_the_budget_is_kept(budget: float) -> None:
    measurer = MadeUpMeasurer()
    found = entries(measurer, None, budget)
    assert 0 < len(found) <= len(PROBLEMS)
    assert measurer.now <= 1.1 * budget + 3.0  # one final is finished


def test_when_time_is_up_no_other_problem_is_begun() -> None:
    (_, first, *_) = starting_points(min(PROBLEMS), SM90)
    measurer = MadeUpMeasurer(fates={first: Failure("hung", "no answer")})
    (only,) = entries(measurer, None, budget=20.0)
    assert only.problem == min(PROBLEMS)
    assert {problem for problem, _, _ in measurer.timed} == {only.problem}


def test_what_neighbours_found_is_tried_first() -> None:
    short, long = PROBLEMS[:2]
    measurer = MadeUpMeasurer()
    best = entries(measurer, None, problems=[short])[0].config
    best = family_of(best).fitted(best, long.problem, short.problem)
    pair = MadeUpMeasurer()
    entries(pair, None, problems=[short, long])
    of_long = [c for (problem, c, _) in pair.timed if problem == long]
    assert best in of_long[:4]


def test_no_config_is_timed_twice_but_the_yardstick() -> None:
    measurer = MadeUpMeasurer()
    entries(measurer, None)
    again = {config for (problem, config, _), count in measurer.timed.items() if count > 1}
    assert again <= {heuristic(problem, SM90) for problem in PROBLEMS}


def test_an_interrupted_run_keeps_all_and_goes_on(tmp_path: Path) -> None:
    interrupted = MadeUpMeasurer(interrupt_after=12)
    with pytest.raises(KeyboardInterrupt):
        entries(interrupted, tmp_path / "store")
    store = Store(tmp_path / "store", MACHINE)
    for problem, config, repeats in interrupted.timed:
        assert store.sample(problem, config, repeats) is not None
    rest = MadeUpMeasurer()
    found = entries(rest, tmp_path / "store")
    assert len(found) == len(PROBLEMS)
    twice = set(interrupted.timed) & set(rest.timed)
    assert {config for _, config, _ in twice} <= {heuristic(p, SM90) for p in PROBLEMS}


def test_a_quick_decision_does_not_stand_for_a_thorough_one(tmp_path: Path) -> None:
    def run(measurer: MadeUpMeasurer, **how: object) -> list[Entry]:
        bench = Bench(measurer, Store(tmp_path / "store", MACHINE))
        return list(Run([dense()], bench, budget=1e6, **how).entries())  # type: ignore[arg-type]

    run(MadeUpMeasurer(), effort=QUICK)
    thorough = MadeUpMeasurer()
    found = run(thorough)
    assert thorough.lineups != []
    quick = MadeUpMeasurer()
    assert run(quick, effort=QUICK, accepts=[THOROUGH]) == found
    assert quick.lineups == []


def test_a_decision_does_not_outlive_a_kernel_that_it_was_made_among(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = entries(MadeUpMeasurer(), tmp_path / "store", problems=[dense()])
    changed = next(c for c in starting_points(dense(), SM90) if c != heuristic(dense(), SM90))

    def digest(config: KernelConfig, features: Features, arch: Arch) -> str:
        return "another" if config == changed else kernel_digest(config, features, arch)

    for module in (run, store):
        monkeypatch.setattr(module, "kernel_digest", digest)
    again = MadeUpMeasurer()
    (decided,) = entries(again, tmp_path / "store", problems=[dense()])
    assert (decided.config, decided.ms) == (found[0].config, found[0].ms)
    assert {config for _, configs, _ in again.lineups for config in configs} == {
        *(changed, heuristic(dense(), SM90))
    }


def test_progress_tells_the_best_so_far_and_the_time_left() -> None:
    told: list[Progress] = []
    bench = Bench(MadeUpMeasurer(), Store(None, MACHINE))
    list(Run(PROBLEMS, bench, budget=500.0, report=told.append).entries())
    assert [p.number for p in told] == sorted(p.number for p in told)
    assert told[-1].total == len(PROBLEMS)
    assert told[0].gain == 1.0
    assert told[-1].gain > 1.05
    left = [p.seconds_left for p in told]
    assert left == sorted(left, reverse=True)


@pytest.mark.exhaustive
def test_the_whole_fa3_grid_takes_no_more_compiles_than_there_is_time_for() -> None:
    measurer = MadeUpMeasurer()
    found = entries(measurer, None, problems=problems_of("fa3"))
    assert len(found) == 36
    assert len(measurer.kernels) <= 1600  # a hundred seconds for 15 cores


@pytest.mark.parametrize(
    ("costs", "most_s"),
    [
        pytest.param(Costs(), 320.0, id="expected", marks=EXHAUSTIVE),
        pytest.param(
            *(Costs(compile=2.6), BUDGET_S + 15.0), id="slow compiler"
        ),  # as if with half of the cores
        pytest.param(
            *(Costs(judge=1.0, oracle=3.0, sample=0.0015), BUDGET_S + 15.0),
            id="slow judge",
            marks=EXHAUSTIVE,
        ),
    ],
)
def test_the_whole_fa3_grid_is_tuned_in_the_time_it_is_given(costs: Costs, most_s: float) -> None:
    machine = SimulatedMachine(costs)
    found = entries(machine, None, BUDGET_S, problems_of("fa3"))
    assert len(found) == 36
    assert machine.now <= most_s
    assert len(machine.kernels) <= 1600
    assert all(entry.gain > 1.005 for entry in found)


GRADIENTS = [
    dense_backward(seq, deterministic=deterministic)
    for deterministic in (False, True)
    for seq in (2048, 4096)
]


def test_gradients_are_tuned_like_attention(tmp_path: Path) -> None:
    measurer = MadeUpMeasurer(true_backward_time)
    found = entries(measurer, tmp_path / "store", problems=[*GRADIENTS])
    assert [entry.problem for entry in found] == sorted(GRADIENTS)
    for entry in found:
        own, config = heuristic(entry.problem, SM90), entry.config
        assert isinstance(config, HopperBackwardKernelConfig)
        assert isinstance(entry.problem, DenseBackwardProblem)
        assert entry.heuristic == own.short_form()
        assert config.query_gradient is QueryGradient.WORKSPACE
        assert config.group_heads == 16
        gain = true_backward_time(own) / true_backward_time(config)
        assert entry.gain == pytest.approx(gain, rel=0.01)
    for problem, config, _ in measurer.timed:
        assert isinstance(config, HopperBackwardKernelConfig)
        assert isinstance(problem, DenseBackwardProblem)
        assert not (problem.deterministic and config.adds_dq)
    again = MadeUpMeasurer(true_backward_time)
    assert entries(again, tmp_path / "store", problems=[*GRADIENTS]) == found
    assert (again.lineups, again.compiled_configs) == ([], [])


def test_tangents_are_tuned_like_attention(tmp_path: Path) -> None:
    problems = [dense_tangent(), dense_tangent(2048, causal=True)]
    found = entries(MadeUpMeasurer(true_tangent_time), tmp_path / "store", problems=[*problems])
    assert [entry.problem for entry in found] == sorted(problems)
    for entry in found:
        best = "hopper_tangent(BF16, 128, 2, 48, 3): lazy_8+persistent"
        assert entry.config.short_form() == best
        assert entry.heuristic == "hopper_tangent(BF16, 128, 2, 64, 2): lazy_8+dynamic_32"
        assert entry.gain == pytest.approx(1.11, rel=0.02)


def test_few_queries_are_not_tuned() -> None:
    short = problems_of([Point(128, True, 4096, 4, 16, seq_q=1)], dtype=DType.FP16)
    with pytest.raises(UnsupportedError, match="so few queries that its keys are split"):
        check_tunable(short, MACHINE, 132)
    check_tunable(PROBLEMS, MACHINE, 132)


def test_what_no_kernel_computes_is_refused_before_anything_is_timed() -> None:
    machine = type(MACHINE)("NVIDIA A100", "", "", ARCHES["sm_80"])
    with pytest.raises(
        UnsupportedError, match=r"no kernel runs .* d 320, .* on sm_80: .* up to 256"
    ):
        check_tunable([dense(d_head=320)], machine, 108)


def test_tuning_needs_a_gpu_and_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="needs an NVIDIA GPU"):
        tune("fa3")
    with pytest.raises(UnsupportedError, match="unknown grid 'fa4'; did you mean 'fa3'"):
        tune("fa4")
    with pytest.raises(UnsupportedError, match="dtype 'fp8' is not supported"):
        tune("fa3", dtype="fp8")
    with pytest.raises(UnsupportedError, match="pass_ is 'both'; choose from forward, backward"):
        tune("fa3", pass_="both")
    with pytest.raises(UnsupportedError, match="the grid backward_gqa is one of gradients"):
        tune("backward_gqa")
    with pytest.raises(UnsupportedError, match="deterministic is asked for, which is about"):
        tune("fa3", deterministic=True)


def test_a_search_without_candidates_is_refused_before_anything_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SET_VARIABLE, "progression")
    check_tunable([dense_backward()], MACHINE, 132)
    with pytest.raises(UnsupportedError, match="kernels of the set progression suits BF16 d 128"):
        check_tunable([dense_backward(), dense_backward(wanted=Wanted(dq=False))], MACHINE, 132)
