# SPDX-License-Identifier: Apache-2.0
"""What the emulator says of a kernel with a planted mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.errors import LaunchError
from flash_attention.launch.emulation import Settings, emulate_backward_plan, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator import DeadlockError, Finding
from ptx_emulator.report.mends import DEADLOCK
from tests import backward_cases
from tests.emulator.edits import Edit, compiler, edited_headers


def kinds_caught(
    edit: Edit,
    folder: Path,
    plan: Plan,
    call: Call,
    assert_right: Callable[[Tensor, Tensor | None], None],
    schedule: str = "lockstep",
) -> set[str]:
    """Run a plan from headers with an edit. Returns the kinds of findings, DEADLOCK if the kernel
    does not end, and NUMBERS if its results are not right."""
    compile_unit = compiler(edited_headers((edit,), folder))
    try:
        result = emulate_plan(plan, call, Settings(schedule), compile_unit=compile_unit)
    except LaunchError as error:
        deadlock = error.__cause__
        assert isinstance(deadlock, DeadlockError)
        return {DEADLOCK, *(f.kind for f in deadlock.findings if isinstance(f, Finding))}
    kinds = {finding.kind for finding in result.findings}
    try:
        assert_right(result.output.nan_to_num(nan=1e9), result.lse)
    except AssertionError:
        kinds.add(NUMBERS)
    return kinds


def kinds_caught_in_gradients(edit: Edit, folder: Path, plan: Plan, call: BackwardCall) -> set[str]:
    """The same of a backward pass."""
    edited = compiler(edited_headers([edit], folder))
    try:
        result = emulate_backward_plan(plan, call, Settings(), compile_unit=edited)
    except LaunchError as error:
        return {DEADLOCK} if "does not end" in str(error) else set()
    caught = {finding.kind for finding in result.findings}
    try:
        backward_cases.assert_right(result.gradients, call)
    except AssertionError:
        caught.add(NUMBERS)
    return caught
