# SPDX-License-Identifier: Apache-2.0
"""The context in which a call tunes: what it finds is used from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import flash_attention
from flash_attention.choose import tables as choice
from flash_attention.choose.tables import choose, tables
from flash_attention.reference.judge import check_output, generate_qkv
from flash_attention.tools.tune import on_demand
from tests.tools.tune.made_up import MACHINE, SM90, MadeUpMeasurer, dense


@pytest.fixture(autouse=True)
def _nothing_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "tuned", {})
    monkeypatch.setattr(choice, "SHIPPED", tmp_path / "none")


def test_an_unseen_problem_is_tuned_and_a_stored_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MadeUpMeasurer] = []

    def measurer(arch: object, device_index: int) -> MadeUpMeasurer:
        made.append(MadeUpMeasurer())
        return made[-1]

    monkeypatch.setattr(on_demand, "InProcessMeasurer", measurer)
    monkeypatch.setattr(on_demand, "machine_of", lambda index: MACHINE)
    monkeypatch.setattr(choice, "device_name", lambda index: MACHINE.device)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    problem = dense().problem
    before = choose(problem, SM90, 0, may_tune=True)
    assert before.reason.startswith("heuristic")
    with flash_attention.tuning(store=tmp_path / "store"):
        inside = choose(problem, SM90, 0, may_tune=True)
        assert choose(problem, SM90, 0, may_tune=True) == inside
    assert inside.config != before.config
    assert len(made) == 1
    assert made[0].lineups != []
    assert choose(problem, SM90, 0, may_tune=True) == inside
    assert choose(dense(512).problem, SM90, 0).reason.startswith("heuristic")
    tables.tuned.clear()
    with flash_attention.tuning(store=tmp_path / "store"):
        assert choose(problem, SM90, 0, may_tune=True).config == inside.config
    assert made[1].lineups == []


@pytest.mark.gpu
def test_attention_tunes_at_its_first_call(tmp_path: Path) -> None:
    q, k, v = generate_qkv(2, 512, 4, 64, torch.float16, "cuda")
    with flash_attention.tuning(budget=10.0, store=tmp_path / "store"):
        first = flash_attention.attention(q, k, v)
        lines = (tmp_path / "store").read_text()
        flash_attention.attention(q, k, v)
    assert (tmp_path / "store").read_text() == lines
    assert check_output(first, q, k, v).ok
    (table,) = tables.tuned.values()
    assert len(table.entries) == 1
