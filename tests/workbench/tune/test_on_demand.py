# SPDX-License-Identifier: Apache-2.0
"""The context in which a call tunes: what it finds is used from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import flash_attention
from flash_attention.call.backward_call import Gradients
from flash_attention.call.call import Call
from flash_attention.choose import rules
from flash_attention.choose import tables as choice
from flash_attention.choose.choice import Rule
from flash_attention.choose.tables import choose_from_tables, tables
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import check_output, generate_qkv
from flash_attention_workbench.tune import on_demand
from tests.workbench.tune.made_up import (
    MACHINE,
    SM90,
    MadeUpMeasurer,
    TrueTime,
    dense,
    dense_backward,
    true_backward_time,
    true_time,
)

ON_H200 = Setting(SM90, 132, device=0)


@pytest.fixture(autouse=True)
def _nothing_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "tuned", {})
    monkeypatch.setattr(choice, "SHIPPED", tmp_path / "none")


def measurers(monkeypatch: pytest.MonkeyPatch, true: TrueTime) -> list[MadeUpMeasurer]:
    """The made-up measurers that problems are tuned with."""
    made: list[MadeUpMeasurer] = []

    def measurer(arch: object, device_index: int) -> MadeUpMeasurer:
        made.append(MadeUpMeasurer(true))
        return made[-1]

    monkeypatch.setattr(on_demand, "InProcessMeasurer", measurer)
    monkeypatch.setattr(on_demand, "machine_of", lambda index: MACHINE)
    monkeypatch.setattr(choice, "device_name", lambda index: MACHINE.device)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    return made


def test_an_unseen_problem_is_tuned_and_a_stored_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measurers(monkeypatch, true_time)
    problem = dense().problem
    before = choose_from_tables(problem, ON_H200, may_tune=True)
    assert before.reason.startswith("heuristic")
    with flash_attention.tuning(store=tmp_path / "store"):
        inside = choose_from_tables(problem, ON_H200, may_tune=True)
        assert choose_from_tables(problem, ON_H200, may_tune=True) == inside
    assert inside.config != before.config
    assert len(made) == 1
    assert made[0].lineups != []
    assert choose_from_tables(problem, ON_H200, may_tune=True) == inside
    assert choose_from_tables(dense(512).problem, ON_H200).reason.startswith("heuristic")
    tables.tuned.clear()
    with flash_attention.tuning(store=tmp_path / "store"):
        assert choose_from_tables(problem, ON_H200, may_tune=True).config == inside.config
    assert made[1].lineups == []


def test_gradients_are_tuned_with_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measurers(monkeypatch, true_backward_time)
    problem = dense_backward(deterministic=True)
    planned: dict[object, object] = {"planned": None}
    monkeypatch.setattr("flash_attention.launch.plans._plans", planned)
    with flash_attention.tuning(store=tmp_path / "store"):
        assert planned == {}  # what was planned before is tuned, too
        choice = rules.choose(problem.problem, ON_H200, may_tune=True)
    assert choice.rule is Rule.TABLE
    assert {timed for timed, _, _ in made[0].timed} == {problem}
    (table,) = tables.tuned.values()
    assert [entry.problem for entry in table.entries] == [problem]
    assert rules.choose(dense_backward().problem, ON_H200).rule is Rule.HEURISTIC


@pytest.mark.gpu
def test_a_backward_pass_tunes_at_its_first_call(tmp_path: Path) -> None:
    q, k, v = (t.requires_grad_() for t in generate_qkv(2, 512, 4, 64, torch.bfloat16, "cuda"))
    with flash_attention.tuning(budget=10.0, store=tmp_path / "store"):
        flash_attention.attention(q, k, v, causal=True).sum().backward()
        lines = (tmp_path / "store").read_text()
        flash_attention.attention(q, k, v, causal=True).sum().backward()
    assert (tmp_path / "store").read_text() == lines
    (table,) = tables.tuned.values()
    assert [entry.problem.pass_ for entry in table.entries] == [Pass.FORWARD, Pass.BACKWARD]
    out = flash_attention.attention(q, k, v, causal=True)
    do = torch.ones_like(out)
    gradients = Gradients(*torch.autograd.grad(out, (q, k, v), do))
    call = Call(q.detach(), k.detach(), v.detach(), out.detach(), causal=True)
    checks = GradientJudge(call, do).check(gradients)
    assert all(check.ok for check in checks.values()), checks


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
