# SPDX-License-Identifier: Apache-2.0
"""`emulate --plant` shows what a mistake looks like: the edit, the finding, what mends it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flash_attention.ladder import get_ladder
from flash_attention_workbench.mends import MENDS, NUMBERS
from flash_attention_workbench.plants import PLANTS, Plant
from ptx_emulator.report.mends import DEADLOCK
from tests.workbench.commands.invoke import invoke, refuse

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "emulator.md"


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_plant_is_caught_by_what_the_list_says(plant: Plant) -> None:
    printed = invoke("emulate", "--plant", plant.name, exit_code=1)
    assert f"planted: {plant.name}, {plant.idea}\n" in printed
    for edit in plant.edits:
        assert f"  fa/{edit.header}\n  @@ " in printed
    if plant.caught_by == DEADLOCK:
        assert "transaction bytes expected" in printed
    else:
        assert ("output: right" in printed) == plant.silent
        assert ("findings: none" in printed) == (plant.caught_by == NUMBERS)
    if plant.caught_by not in (DEADLOCK, NUMBERS):
        assert re.search(rf"^  \[{plant.caught_by}\] .*\n    fa/\S+\.cuh:\d+  \S", printed, re.M)
    assert f"how to fix it ({plant.caught_by}): {MENDS[plant.caught_by]}" in printed


def test_the_list_names_every_plant_for_both_families() -> None:
    listed = invoke("emulate", "--plant", "list")
    for plant in PLANTS:
        assert re.search(rf"^ {plant.name} +{plant.rung} +{re.escape(plant.idea)} ", listed, re.M)
    configs = {type(get_ladder()[plant.rung - 1].config) for plant in PLANTS}
    assert len(configs) == 2
    assert "there is no plant 'x'; choose from missing-wait, " in refuse("emulate", "--plant", "x")


@pytest.mark.slow
def test_json_names_the_plant_and_says_why_a_run_was_stopped() -> None:
    found = json.loads(invoke("emulate", "--plant", "missing-wait", "--json", "-", exit_code=1))
    assert (found["plant"], found["ok"]) == ("missing-wait", False)
    assert {finding["kind"] for finding in found["findings"]} == {"race"}
    stopped = json.loads(invoke("emulate", "--plant", "too-many-bytes", "--json", "-", exit_code=1))
    assert stopped["ok"] is False
    assert "64 transaction bytes expected" in stopped["stopped"]


def test_every_kind_of_finding_has_a_mend() -> None:
    table = DOCUMENT.read_text().partition("| kind | meaning |")[2].partition("\n\n")[0]
    kinds = {kind for row in table.splitlines() for kind in re.findall(r"`([a-z-]+)`", row[:120])}
    assert {"race", "tma-tensor-map", "wgmma-descriptor"} <= kinds
    assert kinds & {"fence.proxy.async"} == set()
    assert {*MENDS} - {DEADLOCK, NUMBERS} <= kinds


def test_a_kernel_that_the_mistake_is_not_in_is_refused() -> None:
    said = refuse("emulate", "--plant", "missing-wait", "--rung", "20")
    assert "does not include fa/sm80/schedule/lazy.cuh, where missing-wait is planted" in said
