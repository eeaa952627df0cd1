# SPDX-License-Identifier: Apache-2.0
"""The store: what is written is found again under the same circumstances, and only then."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flash_attention.call.backward_call import Wanted
from flash_attention.choose.dense import DenseBackwardProblem
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import HopperForwardKernelConfig
from flash_attention_workbench.tune import store as store_module
from flash_attention_workbench.tune.candidates import heuristic
from flash_attention_workbench.tune.measurer import Failure
from flash_attention_workbench.tune.store import Decision, Sample, Store
from tests.workbench.tune.made_up import MACHINE, SM90, dense, dense_backward

PROBLEM = dense()
CONFIG = heuristic(PROBLEM, SM90)
assert isinstance(CONFIG, HopperForwardKernelConfig)
OTHER = replace(CONFIG, ping_pong=False)
SAMPLE, FAILURE = Sample(1.25, 0.98), Failure("hung", "no answer")
DECISION = Decision(
    ranking=(CONFIG.short_form(),),
    winner=CONFIG.short_form(),
    ms=1.0,
    heuristic=CONFIG.short_form(),
    heuristic_ms=1.0,
    when="2026-11-15",
    seconds=3.0,
    complete=True,
    space="abc",
)


def filled(path: Path) -> Store:
    store = Store(path, MACHINE)
    store.add_sample(PROBLEM, CONFIG, 3, SAMPLE)
    store.add_failure(PROBLEM, OTHER, FAILURE)
    store.add_decision(PROBLEM, CONFIG, DECISION)
    return store


def test_what_was_added_is_found_by_the_next_process(tmp_path: Path) -> None:
    for store in (filled(tmp_path / "store"), Store(tmp_path / "store", MACHINE)):
        assert store.sample(PROBLEM, CONFIG, 3) == SAMPLE
        assert store.sample(PROBLEM, CONFIG, 7) is None
        assert store.sample(PROBLEM, OTHER, 3) is None
        assert store.was_timed(PROBLEM, CONFIG)
        assert not store.was_timed(PROBLEM, OTHER)
        assert store.failure(PROBLEM, OTHER) == FAILURE
        assert store.decision(PROBLEM, CONFIG) == DECISION
        assert store.sample(dense(512), CONFIG, 3) is None


@pytest.mark.parametrize("change", ["device", "driver", "nvrtc"])
def test_another_machine_finds_nothing_and_loses_nothing(change: str, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    changed: dict[str, Any] = {change: "another"}
    other = Store(tmp_path / "store", replace(MACHINE, **changed))
    assert other.sample(PROBLEM, CONFIG, 3) is None
    other.add_sample(PROBLEM, CONFIG, 3, Sample(9.0, 1.0))
    assert Store(tmp_path / "store", MACHINE).sample(PROBLEM, CONFIG, 3) == SAMPLE


def test_a_changed_source_is_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "store")
    monkeypatch.setattr(store_module, "kernel_digest", lambda *kernel: "changed")
    store = Store(tmp_path / "store", MACHINE)
    assert store.sample(PROBLEM, CONFIG, 3) is None
    assert store.decision(PROBLEM, CONFIG) is None


@pytest.mark.parametrize(
    "problem",
    [
        dense_backward(),
        dense_backward(deterministic=True),
        dense_backward(wanted=Wanted(dq=False)),
    ],
    ids=str,
)
def test_timings_of_gradients_are_kept_apart(problem: DenseBackwardProblem, tmp_path: Path) -> None:
    config = heuristic(problem, SM90)
    filled(tmp_path / "store").add_sample(problem, config, 3, Sample(2.5, 1.0))
    store = Store(tmp_path / "store", MACHINE)
    assert store.sample(problem, config, 3) == Sample(2.5, 1.0)
    assert store.sample(PROBLEM, CONFIG, 3) == SAMPLE
    for other in (dense_backward(512), dense_backward(), dense_backward(deterministic=True)):
        if other != problem:
            assert store.sample(other, heuristic(other, SM90), 3) is None
    record = json.loads((tmp_path / "store").read_text().splitlines()[-1])
    assert record["problem"]["pass"] == "backward"


def test_a_line_that_was_cut_off_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "store")
    with open(tmp_path / "store", "a") as file:
        file.write('{"kind": "time", "dev')
    with caplog.at_level(logging.WARNING, "flash_attention"):
        store = Store(tmp_path / "store", MACHINE)
    assert "1 lines of" in caplog.text
    store.add_sample(PROBLEM, OTHER, 3, SAMPLE)
    again = Store(tmp_path / "store", MACHINE)
    assert again.sample(PROBLEM, OTHER, 3) == again.sample(PROBLEM, CONFIG, 3) == SAMPLE


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "9" * 9_999,
        "null",
        '{"ms": ' + "9" * 9_999 + "}",
        lambda record: record | {"source": []},
        lambda record: record | {"config": {}},
        lambda record: record | {"kind": ["time"]},
        lambda record: record | {"ms": "fast"},
        lambda record: record | {"kind": "decision", "ranking": 7},
    ],
)
def test_a_line_that_is_no_timing_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: Any
) -> None:
    filled(tmp_path / "store")
    if not isinstance(line, str):
        first = json.loads((tmp_path / "store").read_text().splitlines()[0])
        line = json.dumps(line(first))
    with open(tmp_path / "store", "a") as file:
        file.write(f"{line}\n")
    with caplog.at_level(logging.WARNING, "flash_attention"):
        store = Store(tmp_path / "store", MACHINE)
    assert "1 lines of" in caplog.text
    assert store.sample(PROBLEM, CONFIG, 3) == SAMPLE
    assert store.decision(PROBLEM, CONFIG) == DECISION


def test_a_store_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "store")
    with pytest.raises(
        UnsupportedError, match="store is no store of timings, which is a regular file of up to"
    ):
        Store(tmp_path / "store", MACHINE)
