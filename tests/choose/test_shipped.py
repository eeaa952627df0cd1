# SPDX-License-Identifier: Apache-2.0
"""The table that comes with the package: of valid kernels, found where it says, and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flash_attention.arch import ARCHES
from flash_attention.choose.choice import Rule
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table
from flash_attention.choose.tables import SHIPPED, look_up
from flash_attention.families.recipe import Setting
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid_choice import Part, grid_points
from flash_attention_workbench.tune.points import problems_of

ROOT = Path(__file__).parents[2]
H200 = "NVIDIA H200"
SM90 = ARCHES["sm_90"]


@pytest.fixture(scope="module")
def shipped() -> Table:
    (path,) = SHIPPED.glob("*.json")
    return load_table(path)


def test_it_has_the_grid_and_the_shapes_of_models(shipped: Table) -> None:
    models = problems_of(ROOT / "benchmarks" / "model_shapes.txt")
    assert {entry.problem for entry in shipped.entries} == {*problems_of("fa3"), *models}
    assert (shipped.device, list(shipped.notes)) == (H200, [])


def test_every_kernel_in_it_is_valid_and_no_slower_than_what_it_replaces(shipped: Table) -> None:
    for entry in shipped.entries:
        assert entry.config.broken_rule(SM90) is None
        assert entry.keeps_heuristic or entry.ms <= 0.99 * entry.heuristic_ms


def test_it_says_what_the_stored_timings_decided(shipped: Table) -> None:
    lines = (ROOT / "results" / "h200_timings.jsonl").read_text().splitlines()
    decisions = [row for row in map(json.loads, lines) if row["kind"] == "decision"]
    assert len(decisions) == len(shipped.entries)
    for decision in decisions:
        problem = decision["problem"] | {"dtype": DType[decision["problem"]["dtype"]]}
        entry = shipped.exact(DenseProblem(**problem))
        assert entry is not None
        assert entry.config.short_form() == decision["winner"]
        assert (entry.ms, entry.heuristic_ms) == (decision["ms"], decision["heuristic_ms"])


def test_an_h200_follows_it_and_no_other_gpu_does(shipped: Table) -> None:
    (point,) = grid_points("fa3", Part([128], [True], [8192]))
    problem = DenseProblem.of(point.problem(DType.BF16))
    assert problem is not None
    entry = shipped.exact(problem)
    assert entry is not None
    choice = look_up(problem, Setting(SM90, 132), H200)
    assert (choice.config, choice.rule) == (entry.config, Rule.TABLE)
    assert not entry.keeps_heuristic
    other = look_up(problem, Setting(SM90, 132), "NVIDIA H100 80GB HBM3")
    assert other.rule is Rule.HEURISTIC
    assert "there is no table for NVIDIA H100" in other.reason
