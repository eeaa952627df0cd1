# SPDX-License-Identifier: Apache-2.0
"""Who is asked first for a kernel, and what the answer says of itself."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flash_attention import use_table
from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import ALL, Wanted
from flash_attention.choose import rules
from flash_attention.choose import tables as choice
from flash_attention.choose.choice import Choice, Rule
from flash_attention.choose.dense import DenseBackwardProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import save_table
from flash_attention.choose.tables import TABLE_VARIABLE, choose_from_tables
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.recipe import WORKSPACE_VARIABLE, Setting
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    HopperTangentKernelConfig,
    KernelConfig,
    config_for,
)
from flash_attention.launch import use
from tests.workbench.tune.made_up import SM90, dense, dense_backward, dense_tangent, entry

PROBLEM = dense(4096)
HEURISTIC = select_config(PROBLEM.problem, SM90)
assert isinstance(HEURISTIC, HopperForwardKernelConfig)
FAST = replace(HEURISTIC, prefetch_q=True)
FASTER = replace(HEURISTIC, ping_pong=False)
H200 = "NVIDIA H200"
ON_H200 = Setting(SM90, 132, device=0)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "tables", tables := choice._Tables())
    monkeypatch.setattr(use, "tables", tables)
    monkeypatch.setattr(choice, "SHIPPED", tmp_path / "tables")
    monkeypatch.setattr(choice, "device_name", lambda index: H200)
    monkeypatch.delenv(TABLE_VARIABLE, raising=False)
    choice._loaded.cache_clear()
    choice._note_once.cache_clear()


def table(config: KernelConfig, seq: int = 4096, device: str = H200) -> Table:
    return Table(device).with_entries([entry(dense(seq), config, heuristic=HEURISTIC)])


def chosen(seq: int = 4096) -> Choice:
    return choose_from_tables(dense(seq).problem, ON_H200, may_tune=True)


def test_without_a_table_the_heuristic_chooses() -> None:
    assert chosen() == Choice(HEURISTIC, ON_H200, Rule.HEURISTIC)
    assert chosen().reason == f"heuristic: there is no table for {H200}"


def test_own_table_before_the_environments_before_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_table(table(FAST), tmp_path / "tables" / "h200.json")
    assert chosen().config == FAST
    assert "h200.json, 2026-11-15" in chosen().reason
    assert chosen().reason.startswith("measured for this problem: 1 ms, the heuristic's 1.1 ms")
    save_table(table(FASTER), tmp_path / "mine.json")
    monkeypatch.setenv(TABLE_VARIABLE, str(tmp_path / "mine.json"))
    assert chosen().config == FASTER
    use_table(table(FAST))
    assert chosen().config == FAST
    assert "the table" in chosen().reason
    use_table(None)
    assert chosen().config == FASTER
    choice.tables.tuned[H200] = table(HEURISTIC)
    assert chosen().config == HEURISTIC
    assert "tuned in this process" in chosen().reason


def test_an_exact_entry_goes_before_a_near_one_of_a_better_source() -> None:
    choice.tables.tuned[H200] = table(FAST, seq=2048)
    use_table(table(FASTER))
    assert chosen().config == FASTER
    assert chosen(2048).config == FAST


def test_a_near_entry_is_followed_as_far_as_the_bound() -> None:
    use_table(table(FASTER))
    near = replace(dense(4096), seq_q=3600, seq_k=3600).problem
    found = choose_from_tables(near, ON_H200)
    assert found.config == FASTER
    assert found.reason.startswith("the nearest entry is BF16 d 128 full, 4 x 4096 rows x 16 heads")
    far = choose_from_tables(dense(512).problem, ON_H200)
    assert far.config == select_config(dense(512).problem, SM90)
    assert "away, over 1.5" in far.reason


def test_near_a_problem_where_nothing_was_faster_the_heuristic_knows_better() -> None:
    causal = dense(4096, causal=True)
    own = select_config(causal.problem, SM90)
    use_table(Table(H200).with_entries([entry(causal, own)]))
    near = replace(causal, seq_k=8192, seq_q=8192, batch=1)
    found = choose_from_tables(replace(causal, seq_k=4800).problem, ON_H200)
    assert "no config was faster there" in found.reason
    assert choose_from_tables(near.problem, ON_H200).config == select_config(near.problem, SM90)


@pytest.mark.parametrize(
    "change",
    [{"softcap": 20.0}, {"sinks": True}, {"window": (64, 0)}, {"seqused_k": True}],
    ids=str,
)
def test_only_dense_problems_are_looked_up(change: dict[str, Any]) -> None:
    use_table(table(FASTER))
    problem = replace(PROBLEM.problem, **change)
    found = choose_from_tables(problem, ON_H200)
    assert found.config == select_config(problem, SM90)
    assert found.reason == (
        "heuristic: tables cover full and causal attention of 16-bit tensors only"
    )
    scaled = replace(PROBLEM.problem, softmax_scale=1.0)
    assert choose_from_tables(scaled, ON_H200).config == FASTER


def test_the_emulator_has_no_tables() -> None:
    use_table(table(FASTER))
    assert choose_from_tables(PROBLEM.problem, Setting(SM90, 132, device=-1)).config == HEURISTIC


def test_another_kind_is_not_followed() -> None:
    use_table(table(FASTER))
    other = dense(4096, dtype=DType.FP16)
    assert "no entry has this data type" in choose_from_tables(other.problem, ON_H200).reason


def test_a_table_of_another_device_is_refused_or_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = table(FASTER, device="NVIDIA H100")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UnsupportedError, match="is for NVIDIA H100, this machine has NVIDIA H200"):
        use_table(foreign)
    assert chosen().config == HEURISTIC
    use_table(foreign, hint=True)
    assert chosen().config == FASTER
    assert "a hint from NVIDIA H100" in chosen().reason


def test_a_table_of_another_device_in_the_environment_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_table(table(FASTER, device="NVIDIA H100"), tmp_path / "mine.json")
    monkeypatch.setenv(TABLE_VARIABLE, str(tmp_path / "mine.json"))
    with caplog.at_level(logging.WARNING, "flash_attention"):
        assert chosen().config == chosen().config == HEURISTIC
    assert caplog.text.count("is for NVIDIA H100 and is not used on NVIDIA H200") == 1
    monkeypatch.setenv(TABLE_VARIABLE, str(tmp_path / "absent.json"))
    with pytest.raises(UnsupportedError, match=r"absent.json is not a table"):
        chosen()


def test_an_entry_that_breaks_a_rule_here_is_ignored_with_a_note(
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_table(table(FASTER))
    with caplog.at_level(logging.WARNING, "flash_attention"):
        found = choose_from_tables(PROBLEM.problem, Setting(ARCHES["sm_80"], 132, device=0))
    assert found.config == select_config(PROBLEM.problem, ARCHES["sm_80"])
    assert "is ignored: a Hopper config needs sm_90" in caplog.text


GRADIENTS = dense_backward(4096)
ADDED = select_config(GRADIENTS.problem, SM90)
assert isinstance(ADDED, HopperBackwardKernelConfig)
STORED = replace(ADDED, query_gradient=QueryGradient.WORKSPACE)


def gradient_table(
    config: KernelConfig, problem: DenseBackwardProblem = GRADIENTS, device: str = H200
) -> Table:
    return Table(device).with_entries([entry(problem, config, heuristic=ADDED)])


def test_gradients_are_looked_up_among_entries_of_their_pass() -> None:
    use_table(gradient_table(STORED))
    found = choose_from_tables(GRADIENTS.problem, ON_H200)
    assert (found.config, found.rule) == (STORED, Rule.TABLE)
    assert found.reason.startswith("measured for this problem: 1 ms, the heuristic's 1.1 ms")
    forward = chosen()
    assert forward.config == HEURISTIC
    assert forward.reason == "heuristic: no entry has this data type, head dimension and mask"
    use_table(table(FASTER).with_entries(gradient_table(STORED).entries))
    assert (
        chosen().config,
        choose_from_tables(GRADIENTS.problem, ON_H200).config,
    ) == (FASTER, STORED)
    use_table(table(FASTER))
    without = choose_from_tables(GRADIENTS.problem, ON_H200)
    assert without.config == ADDED
    assert without.reason == (
        "heuristic: no entry has this pass, data type, head dimension and mask, these gradients and"
        " this determinism"
    )


@pytest.mark.parametrize(
    ("wanted", "deterministic"), [(ALL, True), (Wanted(dq=False), False), (Wanted(dk=False), False)]
)
def test_other_gradients_and_deterministic_ones_have_entries_of_their_own(
    wanted: Wanted, deterministic: bool
) -> None:
    other = dense_backward(4096, wanted=wanted, deterministic=deterministic)
    use_table(gradient_table(STORED))
    found = choose_from_tables(other.problem, ON_H200)
    assert found == Choice(select_config(other.problem, SM90), ON_H200, Rule.HEURISTIC)
    assert found.reason == f"heuristic: no entry has this {other.kind_words}"
    near = dense_backward(4000, wanted=wanted, deterministic=deterministic)
    assert choose_from_tables(near.problem, ON_H200).rule is Rule.HEURISTIC


def test_a_near_entry_serves_gradients_of_its_kind() -> None:
    repeated = dense_backward(4096, deterministic=True)
    use_table(gradient_table(STORED, repeated))
    near = replace(repeated, seq_q=3600, seq_k=3600)
    found = choose_from_tables(near.problem, ON_H200)
    assert (found.config, found.rule) == (STORED, Rule.TABLE)
    assert found.reason.startswith(f"the nearest entry is {repeated}, ")
    assert choose_from_tables(dense_backward(3600).problem, ON_H200).config == ADDED


@pytest.mark.parametrize(
    ("problem", "config", "why"),
    [
        (dense_backward(4096, deterministic=True), ADDED, "the kernel config adds dq up in any"),
        (dense_backward(4096, wanted=Wanted(dq=False)), STORED, "dq is not wanted, and the kern"),
    ],
    ids=["deterministic", "without dq"],
)
def test_an_entry_that_does_not_compute_what_is_asked_is_skipped_with_a_note(
    problem: DenseBackwardProblem,
    config: KernelConfig,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_table(gradient_table(config, problem))
    with caplog.at_level(logging.WARNING, "flash_attention"):
        found = choose_from_tables(problem.problem, ON_H200)
    assert (found.config, found.rule) == (select_config(problem.problem, SM90), Rule.HEURISTIC)
    assert f"the table: {config.short_form()} is ignored: " in caplog.text
    assert why in caplog.text


def test_an_entry_without_room_in_the_workspace_is_skipped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long = dense_backward(1 << 17)
    use_table(gradient_table(STORED, long))
    assert choose_from_tables(long.problem, ON_H200).config == STORED
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    with caplog.at_level(logging.WARNING, "flash_attention"):
        assert choose_from_tables(long.problem, ON_H200).config == ADDED
    assert f"set {WORKSPACE_VARIABLE} to at least that" in caplog.text


def test_gradients_are_tuned_once_inside_of_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    tuned = list[Any]()

    def tune(problem: Any, arch: Any, device_index: int) -> Any:
        tuned.append(problem)
        return entry(problem, STORED, heuristic=ADDED)

    choice.tables.tune = tune
    for _ in range(2):
        found = choose_from_tables(GRADIENTS.problem, ON_H200, may_tune=True)
        assert (found.config, found.rule) == (STORED, Rule.TABLE)
    assert tuned == [GRADIENTS]


def test_inside_of_tuning_an_unseen_problem_is_tuned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    tuned = list[Any]()

    def tune(problem: Any, arch: Any, device_index: int) -> Any:
        tuned.append(problem)
        return entry(problem, FASTER, heuristic=HEURISTIC)

    use_table(table(FAST, seq=2048))
    choice.tables.tune = tune
    assert (
        choose_from_tables(PROBLEM.problem, ON_H200).config == HEURISTIC
    )  # to explain is not to run
    assert (chosen().config, chosen(2048).config) == (FASTER, FAST)
    choice.tables.tune = None
    assert chosen().config == FASTER
    assert tuned == [PROBLEM]
    choice.tables.tune = tune
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    chosen(1024)
    assert tuned == [PROBLEM]


def test_a_new_table_is_heeded_by_problems_that_were_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: dict[Any, Any] = {"planned": None}
    monkeypatch.setattr("flash_attention.launch.plans._plans", plans)
    use_table(table(FASTER))
    assert plans == {}


def test_a_choice_about_gradients_says_that_a_table_made_it() -> None:
    use_table(gradient_table(STORED))
    by_table = rules.choose(GRADIENTS.problem, ON_H200)
    assert (by_table.config, by_table.rule) == (STORED, Rule.TABLE)
    given = config_for(ADDED.short_form(), GRADIENTS.problem)
    assert rules.choose(GRADIENTS.problem, ON_H200, config=given).rule is Rule.GIVEN
    with pytest.raises(KernelConfigError, match="a config of the forward pass; pass a Flash"):
        config_for(HEURISTIC, GRADIENTS.problem)


def test_a_choice_says_that_a_table_made_it() -> None:
    use_table(table(FASTER))
    by_table = rules.choose(PROBLEM.problem, ON_H200)
    assert (by_table.config, by_table.rule) == (FASTER, Rule.TABLE)
    assert by_table.reason.startswith("measured for this problem")
    without = rules.choose(PROBLEM.problem, Setting(SM90, 132))
    assert (without.config, without.rule) == (HEURISTIC, Rule.HEURISTIC)


def test_a_table_chooses_the_kernel_of_a_tangent() -> None:
    problem = dense_tangent(4096)
    own = select_config(problem.problem, SM90)
    assert isinstance(own, HopperTangentKernelConfig)
    faster = replace(own, B_c=48, stages=3)
    use_table(Table(H200).with_entries([entry(problem, faster, heuristic=own)]))
    assert choose_from_tables(problem.problem, ON_H200).config == faster
    near = replace(problem, seq_k=5000, seq_q=5000)
    assert choose_from_tables(near.problem, ON_H200).config == faster
    assert "no entry has this data type" in choose_from_tables(dense(4096).problem, ON_H200).reason
