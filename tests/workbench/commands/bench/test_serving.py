# SPDX-License-Identifier: Apache-2.0
"""What the serving grid refuses, prints and writes of made-up measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flash_attention_workbench.bench.clocks import Clocks
from flash_attention_workbench.bench.serving import Step, serving_steps
from flash_attention_workbench.bench.serving_run import How, ServingRow, load_serving
from flash_attention_workbench.commands.bench import serving
from tests.workbench.bench.made_up_grid import made_up_grid
from tests.workbench.commands.invoke import invoke, refuse

HOST = {"packed": {"new": 58.0, "known": 18.0}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Step, How]]:
    """A GPU on which every step takes 20 us, and FA3 twice that; what was asked of it."""
    steps: list[tuple[Step, How]] = []

    def measure(step: Step, how: How) -> ServingRow:
        steps.append((step, how))
        us = {"packed": 20.0} | {name: 40.0 for name in how.peers}
        return ServingRow(
            *(step.label, step.layer.words, len(step.keys), sum(step.queries), sum(step.keys)),
            *("hopper", us, {}, {"packed": 0.9}, 1500.0),
        )

    facts = {name: made_up_grid()[name] for name in ("device", "date", "commit")}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(serving, "describe", lambda device: facts)
    monkeypatch.setattr(serving, "compile_steps", lambda steps: None)
    monkeypatch.setattr(serving, "measure_step", measure)
    monkeypatch.setattr(serving, "host_times", lambda how: HOST)
    monkeypatch.setattr(serving, "read_clocks", lambda device: Clocks(1980, 3201, 400, 50, 0))
    return steps


def test_every_step_is_measured_and_written(asked: list[tuple[Step, How]], tmp_path: Path) -> None:
    results, picture = tmp_path / "serving.json", tmp_path / "serving.png"
    library = tmp_path / "_vllm_fa3_C.abi3.so"
    told = invoke(
        *("bench", "--grid", "serving", "--repeats", "7", "--fa3", str(library)),
        *("--json", str(results), "--plot", str(picture)),
    )
    assert [step for step, _ in asked] == list(serving_steps())
    assert {(how.repeats, how.peers, how.fa3) for _, how in asked} == {(7, ("fa3",), library)}
    stored = load_serving(results)
    assert [row.label for row in stored.rows] == [step.label for step in serving_steps()]
    assert {row.ratio for row in stored.rows} == {2.0}
    assert stored.host_us == HOST
    assert str(tmp_path) not in stored.command  # the machine is nobody's business
    assert "--fa3 _vllm_fa3_C.abi3.so" in stored.command
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "geometric mean 2.000, least 2.000" in told
    assert "host, packed: 58 us with new shapes, 18 us with known ones" in told


def test_the_grid_runs_without_the_peer(asked: list[tuple[Step, How]], tmp_path: Path) -> None:
    picture = tmp_path / "serving.png"
    told = invoke("bench", "--grid", "serving", "--peers", "none", "--plot", str(picture))
    assert {how.peers for _, how in asked} == {()}
    assert "geometric mean" not in told
    assert not picture.exists()  # there is nothing to compare


def test_a_wrong_output_is_an_error(
    asked: list[tuple[Step, How]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(step: Step, how: How) -> ServingRow:
        refused = {"packed": "wrong: max error 1"}
        return ServingRow(step.label, "32:8 h", 1, 1, 1, "", {}, {}, {}, None, refused)

    monkeypatch.setattr(serving, "measure_step", wrong)
    assert "packed: wrong: max error 1" in invoke("bench", "--grid", "serving", exit_code=1)


def test_options_of_other_grids_are_refused(asked: list[tuple[Step, How]]) -> None:
    assert "--d-head is for other grids" in refuse("bench", "--grid", "serving", "--d-head", "64")
    assert "--csv is for other grids" in refuse("bench", "--grid", "serving", "--csv", "x.csv")
    assert "serving has fa3, or none" in refuse("bench", "--grid", "serving", "--peers", "cudnn")
    assert asked == []
