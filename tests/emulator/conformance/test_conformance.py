# SPDX-License-Identifier: Apache-2.0
"""The emulator against NumPy everywhere, and against the GPU where there is one."""

from __future__ import annotations

import pytest

from flash_attention.launch.device import current_arch
from ptx_emulator import SCHEDULES
from tests.emulator.conformance.device import launched
from tests.emulator.conformance.emulated import emulated
from tests.emulator.conformance.everything import CASES
from tests.emulator.conformance.verdict import Verdict, judge

BLACKWELL = "sm_120"  # its PTX is written by another front end, with untyped registers


def assert_all_ok(verdicts: list[Verdict]) -> None:
    wrong = [f"{v.instruction}: {v.first_difference}" for v in verdicts if not v.ok]
    assert wrong == []


@pytest.mark.parametrize("name", CASES)
def test_the_emulator_computes_what_numpy_does(name: str) -> None:
    case = CASES[name]
    out, findings = emulated(case)
    assert findings == []
    assert_all_ok(judge(case, out, case.expected))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.arch == "sm_80"])
def test_the_other_dialect_of_ptx_means_the_same(name: str) -> None:
    case = CASES[name]
    out, findings = emulated(case, BLACKWELL)
    assert findings == []
    assert_all_ok(judge(case, out, case.expected))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "name", ["atomics", "float additions", "tickets", "early exit", "named barriers"]
)
def test_the_order_of_warps_changes_nothing(name: str, schedule: str) -> None:
    case = CASES[name]
    out, findings = emulated(case, schedule=schedule)
    assert findings == []
    assert_all_ok(judge(case, out, case.expected))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_gpu_computes_what_the_emulator_does(name: str) -> None:
    case = CASES[name]
    if case.arch != "sm_80" and current_arch().name != case.arch.rstrip("a"):
        pytest.skip(f"a kernel for {case.arch} alone")
    arch = current_arch().name if case.arch == "sm_80" else case.arch
    out = launched(case, arch)
    assert_all_ok(judge(case, out, case.expected))
    assert_all_ok(judge(case, out, emulated(case, arch)[0], slack=1))
