# SPDX-License-Identifier: Apache-2.0
"""Lineups in a child that some kernels take down; on a GPU, two problems from start to end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flash_attention.choose.dense import DenseBackwardProblem
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig
from flash_attention.launch.device import current_arch
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.child import ChildLostError
from flash_attention_workbench.tune import device, timed
from flash_attention_workbench.tune.candidates import starting_points
from flash_attention_workbench.tune.device import Answers, time_without_the_lost
from flash_attention_workbench.tune.measurer import Failure
from flash_attention_workbench.tune.run import Progress, tune
from tests.workbench.tune.lineups import pretend_lineup
from tests.workbench.tune.made_up import SM90, dense

pytestmark = pytest.mark.slow  # left out of `make quick`

CONFIGS = starting_points(dense(), SM90)[:6]


class Lossy:
    """Calls a child that is lost at the first run of some configs, or while others are timed."""

    def __init__(self, first_run: Sequence[KernelConfig], later: Sequence[KernelConfig]) -> None:
        self._first_run = first_run
        self._later = later
        self.calls = 0

    def __call__(self, lineup: Sequence[KernelConfig]) -> Answers:
        self.calls += 1
        for config in lineup:
            if config in self._first_run:
                raise ChildLostError("hung", "no answer for 30 s", config.short_form())
        if any(config in self._later for config in lineup):
            raise ChildLostError("faulted", "illegal", timed.TIMING)
        return dict.fromkeys(lineup, 1.0)


def test_a_lineup_without_losses_is_called_once() -> None:
    call = Lossy([], [])
    assert time_without_the_lost(call, CONFIGS) == dict.fromkeys(CONFIGS, 1.0)
    assert call.calls == 1


def test_who_is_lost_at_its_first_run_is_out_and_the_others_are_timed() -> None:
    call = Lossy(CONFIGS[1:3], [])
    answers = time_without_the_lost(call, CONFIGS)
    assert call.calls == 3
    for config in CONFIGS:
        lost = config in CONFIGS[1:3]
        assert answers[config] == (Failure("hung", "no answer for 30 s") if lost else 1.0)


def test_who_is_lost_among_timed_runs_is_found_by_trying_each_alone() -> None:
    answers = time_without_the_lost(Lossy([], [CONFIGS[4]]), CONFIGS)
    assert answers[CONFIGS[4]] == Failure("faulted", "illegal")
    assert [answers[c] for c in CONFIGS if c != CONFIGS[4]] == [1.0] * 5


class Unwell:
    """A child that is lost so many times, whichever kernels it is to run, if there are several."""

    def __init__(self, times: int, note: object) -> None:
        self._times = times
        self._note = note

    def __call__(self, lineup: Sequence[KernelConfig]) -> Answers:
        if self._times and len(lineup) > 1:
            self._times -= 1
            raise ChildLostError("faulted", "out of memory", self._note)
        return dict.fromkeys(lineup, 1.0)


@pytest.mark.parametrize("note", [None, timed.TIMING])
def test_a_loss_that_no_kernel_explains_is_forgiven_once(note: object) -> None:
    assert time_without_the_lost(Unwell(1, note), CONFIGS) == dict.fromkeys(CONFIGS, 1.0)


def test_a_child_that_never_comes_to_run_a_kernel_blames_none() -> None:
    with pytest.raises(UnsupportedError, match="lost before it runs one: out of memory"):
        time_without_the_lost(Unwell(2, None), CONFIGS)


def test_kernels_that_are_well_only_by_themselves_are_all_out() -> None:
    answers = time_without_the_lost(Unwell(2, timed.TIMING), CONFIGS)
    assert answers == dict.fromkeys(CONFIGS, Failure("faulted", "out of memory"))


def test_a_lineup_of_lost_ones_ends() -> None:
    answers = time_without_the_lost(Lossy(CONFIGS[:3], CONFIGS[3:]), CONFIGS)
    assert all(isinstance(answer, Failure) for answer in answers.values())


def test_a_measurer_goes_on_after_kernels_that_hang_and_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "time_lineup", pretend_lineup)
    problem = dense(d_head=256)
    lineup = starting_points(problem, SM90)
    bad = {
        config: "hung" if config.stages == 1 else "faulted"
        for config in lineup
        if isinstance(config, HopperForwardKernelConfig)
        and (config.stages == 1 or config.B_c == 48)
    }
    first, *_, last = bad
    some = [first, lineup[0], last]
    assert {bad[first], bad[last]} == {"hung", "faulted"}
    measurer = device.ChildMeasurer(SM90, 0)
    measurer._child.patience = 1.0
    try:
        answers = measurer.time(problem, some, repeats=3, check=False)
    finally:
        measurer.close()
    assert answers[lineup[0]] == 3.0
    for config in some:
        if config in bad:
            failure = answers[config]
            assert isinstance(failure, Failure)
            assert failure.fate == bad[config]


@pytest.mark.gpu
def test_two_points_are_tuned_once(tmp_path: Path) -> None:
    points = [Point(64, causal, 512, 2, 4) for causal in (False, True)]
    store, told = tmp_path / "store.jsonl", list[Progress]()

    def tuned() -> Table:
        return tune(
            *(points,),
            dtype="fp16",
            table=tmp_path / "table.json",
            store=store,
            budget=60.0,
            report=told.append,
        )

    table = tuned()
    assert len(table.entries) == 2
    assert all(entry.gain >= 1.0 for entry in table.entries)
    assert told
    lines = store.read_text()
    told.clear()
    assert tuned() == table == load_table(tmp_path / "table.json")
    assert told == []
    assert store.read_text() == lines


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_are_tuned_once(tmp_path: Path, deterministic: bool) -> None:
    store = tmp_path / "store.jsonl"

    def tuned() -> Table:
        return tune(
            *([Point(64, True, 512, 2, 4)],),
            dtype="bf16",
            pass_="backward",
            deterministic=deterministic,
            table=tmp_path / "table.json",
            store=store,
            budget=60.0,
        )

    table = tuned()
    (entry,) = table.entries
    assert isinstance(entry.problem, DenseBackwardProblem)
    assert entry.problem.deterministic == deterministic
    assert entry.problem.refusal(entry.config, current_arch()) is None
    assert entry.gain >= 1.0
    lines = store.read_text()
    assert '"fate": "wrong"' not in lines
    assert tuned() == table == load_table(tmp_path / "table.json")
    assert store.read_text() == lines
