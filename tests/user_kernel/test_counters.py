# SPDX-License-Identifier: Apache-2.0
"""Counts of the corpus against those on record: whatever the schedule, and however fast it runs.

`python -m tests.user_kernel.test_counters` writes the record anew.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ptx_emulator import SCHEDULES
from tests.user_kernel.corpus_kernels import corpus_kernel
from tests.user_kernel.corpus_launches import FILES, launches, more_launches
from tests.user_kernel.pattern_cases import cases

RECORD = Path(__file__).parent / "recorded_counters.json"
PATTERNS = cases()
ASKS_AGAIN = ("pipelined_scale", "random")  # how often a wait asks, the order of the warps decides


def counted(entry: str, schedule: str) -> dict[str, int]:
    """What a kernel of the corpus counts in all."""
    pattern = PATTERNS.get(entry)
    if pattern is None:
        arguments, launch = {**launches(), **more_launches()}[entry]
        file, variables = FILES[entry], {}
        arch = "sm_90a" if file == "hopper.cu" else "sm_80"
    else:
        arguments, launch, file = pattern.arguments, pattern.launch, pattern.file
        variables, arch = pattern.variables, pattern.arch
    kernel = corpus_kernel(file, entry, arch)
    run = kernel.run(
        *copy.deepcopy(arguments), **launch, variables=variables, schedule=schedule, seed=3
    )
    assert run.findings == ()
    return _totals(run.counters.to_dict())


def _totals(counters: dict[str, Any]) -> dict[str, int]:
    whole = {name: value for name, value in counters.items() if isinstance(value, int)}
    for space in ("shared", "global"):
        for site in counters[space]:
            for name, value in site.items():
                if isinstance(value, int) and name != "ptx_line":
                    whole[f"{space} {name}"] = whole.get(f"{space} {name}", 0) + value
    return dict(sorted(whole.items()))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("entry", [*FILES, *PATTERNS])
def test_counts_are_those_on_record(entry: str, schedule: str) -> None:
    got, recorded = counted(entry, schedule), json.loads(RECORD.read_text())[entry]
    if (entry, schedule) == ASKS_AGAIN:
        for name in ("barrier_waits", "warp_instructions"):
            del got[name], recorded[name]
    assert got == recorded


if __name__ == "__main__":
    found = {entry: counted(entry, "lockstep") for entry in (*FILES, *PATTERNS)}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
