# SPDX-License-Identifier: Apache-2.0
"""`simulate` prints what the simulator says for its options."""

from __future__ import annotations

import json

import pytest

from flash_attention.distributed import simulate
from tests.workbench.commands.invoke import invoke, refuse

SMALL = ("simulate", "--length", "65536", "--gpus", "8", "--heads", "32", "--heads-k", "8")


def test_the_table_has_every_schedule() -> None:
    printed = invoke(*SMALL)
    for estimate in simulate(65536, 8, heads=32, heads_k=8):
        line = next(
            line
            for line in printed.splitlines()
            if line.split()[:1] == [estimate.schedule]
            and f" {' x '.join(map(str, estimate.mesh))} " in line[: line.index(".")]
        )
        assert f"{1e3 * estimate.seconds:,.2f}" in line
        assert f"{100 * estimate.hidden:.0f} %" in line


@pytest.mark.parametrize("option", ["--full", "--backward", "--window", "--bandwidth"])
def test_options_change_the_times(option: str) -> None:
    value = ("5",) if option in ("--window", "--bandwidth") else ()
    first, second = (
        json.loads(invoke(*SMALL, *options, "--json", "-"))["rows"]
        for options in ((), (option, *value))
    )
    assert [row["seconds"] for row in first] != [row["seconds"] for row in second]


def test_heads_that_do_not_fit_are_refused() -> None:
    assert "heads must be a multiple of heads_k" in refuse("simulate", "--heads-k", "5")
