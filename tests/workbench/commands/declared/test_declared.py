# SPDX-License-Identifier: Apache-2.0
"""What help says of names and defaults is what the commands take."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

from flash_attention_workbench.bench import ladder_run
from flash_attention_workbench.bench.grid import GRIDS
from flash_attention_workbench.bench.names import GRID_NAMES
from flash_attention_workbench.commands import (
    build,
    check,
    debug,
    doctor,
    emulate,
    explain,
    report,
    simulate,
)
from flash_attention_workbench.commands import tune as tuning
from flash_attention_workbench.commands.bench import command as bench
from flash_attention_workbench.commands.declared import (
    calls,
    distributed,
    kernels,
    ladder,
    measuring,
)
from flash_attention_workbench.commands.inspect import command as inspect
from flash_attention_workbench.commands.ladder import diff, listing, run, show
from flash_attention_workbench.tune.points import TUNABLE
from flash_attention_workbench.tune.run import BUDGET_S
from ptx_emulator import SCHEDULES
from tests.workbench.commands.invoke import invoke

PAIRS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (measuring.bench, bench.bench),
    (measuring.tune, tuning.tune),
    (measuring.report, report.report),
    (kernels.inspect, inspect.inspect),
    (kernels.emulate, emulate.emulate),
    (kernels.debug, debug.debug),
    (kernels.build, build.build),
    (kernels.doctor, doctor.doctor),
    (ladder.list_rungs, listing.list_rungs),
    (ladder.show, show.show),
    (ladder.diff, diff.diff),
    (ladder.run_ladder, run.run),
    (calls.check, check.check),
    (calls.explain, explain.explain),
    (distributed.simulate, simulate.simulate),
]


def test_names_are_those_that_there_are() -> None:
    assert tuple(GRIDS) == GRID_NAMES
    assert tuple(ladder_run.GRIDS) == ladder.GRIDS
    assert (measuring.TUNABLE, measuring.BUDGET_S) == (TUNABLE, BUDGET_S)
    assert kernels.SCHEDULES == SCHEDULES


@pytest.mark.parametrize(("declared", "command"), PAIRS, ids=lambda f: f.__module__)
def test_a_command_takes_what_is_declared(
    declared: Callable[..., Any], command: Callable[..., Any]
) -> None:
    undecorated = getattr(declared, "__wrapped__", declared)
    assert list(signature(undecorated).parameters) == list(signature(command).parameters)


def test_h_is_help_everywhere() -> None:
    for command in ((), ("bench",), ("ladder",), ("ladder", "run")):
        assert invoke(*command, "-h") == invoke(*command, "--help")
    assert "--install-completion" in invoke("-h")
