# SPDX-License-Identifier: Apache-2.0
"""`flash-attention tune`: what it is told reaches the tuner, what it finds is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flash_attention.choose.table import Table
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import HopperForwardKernelConfig
from flash_attention_workbench.tune import run
from flash_attention_workbench.tune.candidates import heuristic
from flash_attention_workbench.tune.points import problems_of
from tests.workbench.commands.invoke import invoke, refuse
from tests.workbench.tune.made_up import SM90, entry


def test_what_was_found_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def tune(grid: str, **options: Any) -> Table:
        told.update(options)
        asked = problems_of(grid, d_heads=options["d_heads"], masks=options["masks"])
        first = heuristic(asked[0], SM90)
        assert isinstance(first, HopperForwardKernelConfig)
        options["tell"]("2 combinations, 1 falls to the rule registers, 1 is left")
        options["report"](run.Progress(asked[0], 1, len(asked), first, 1.0, 100.0))
        return Table("NVIDIA H200").with_entries(
            entry(problem, heuristic(problem, SM90)) for problem in asked[:-1]
        )

    monkeypatch.setattr(run, "tune", tune)
    where = tmp_path / "table.json"
    options = (
        "--d-head",
        "64,128",
        "--causal",
        "--budget",
        "60",
        "--table",
        str(where),
        "--family",
        "sm80",
    )
    text = invoke("tune", "--grid", "fa3", *options)
    assert (told["d_heads"], told["masks"], told["budget"]) == ((64, 128), (True,), 60.0)
    assert (told["table"], told["family"]) == (where, "sm80")
    assert "2 combinations, 1 falls to the rule registers, 1 is left" in text
    assert "NVIDIA H200: 1.100 times the heuristic's speed in geometric mean" in text
    assert text.count("the heuristic's") >= 11
    assert "BF16 d 64 causal, 32 x 512 rows x 32 heads" in text
    assert "1 problems have no entry" in text


def test_gradients_are_asked_for_by_their_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def tune(grid: str, **options: Any) -> Table:
        told.update(options)
        asked = problems_of(
            grid,
            seq_lens=options["seq_lens"],
            pass_=Pass.BACKWARD,
            deterministic=options["deterministic"],
        )
        return Table("NVIDIA H200").with_entries(
            entry(problem, heuristic(problem, SM90)) for problem in asked
        )

    monkeypatch.setattr(run, "tune", tune)
    options = ("--pass", "backward", "--deterministic", "--seq", "4096", "--grid", "backward_gqa")
    text = invoke("tune", "--table", str(tmp_path / "table.json"), *options)
    assert (told["pass_"], told["deterministic"]) == ("backward", True)
    shape = "4 x 4096 rows x 64/8 heads, backward, deterministic"
    for mask in ("full", "causal"):
        assert f"BF16 d 128 {mask}, {shape}" in text
    assert "have no entry" not in text


def test_interrupted_it_says_where_everything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(grid: str, **options: Any) -> Table:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "tune", tune)
    invoke("tune", "--table", str(tmp_path / "table.json"), exit_code=130)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--grid", "fa2"), "did you mean 'fa3'?"),
        (("--grid", "window"), "1 x 16384, 16 h, d 128, window 1024 has a window"),
        (("--d-head", "wide"), "--d-head is 'wide'; pass whole numbers, as in 64,128"),
        (("--dtype", "fp8"), "dtype 'fp8' is not supported"),
        (("--d-head", "96"), "its head dimensions 2048"),
        (("--pass", "sideways"), "--pass is 'sideways'; choose from forward, backward"),
        (("--deterministic",), "deterministic is asked for, which is about gradients"),
        (("--grid", "backward"), "the grid backward is one of gradients; tune the backward pass"),
    ],
)
def test_bad_input_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refuse("tune", "--table", str(tmp_path / "table.json"), *options)
    assert list(tmp_path.iterdir()) == []
