# SPDX-License-Identifier: Apache-2.0
"""A kernel in a test: it runs in several orders of the warps, and nothing may be found."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ptx_emulator.choices import DEFAULT_ARCH, SCHEDULES
from ptx_emulator.errors import LaunchError
from ptx_emulator.report.findings import finding_lines, from_here
from ptx_emulator.user_kernel.kernel import UserKernel, UserRun


def assert_clean(
    kernel: UserKernel | str | Path,
    *args: Any,
    entry: str | None = None,
    arch: str = DEFAULT_ARCH,
    schedules: Sequence[str] = SCHEDULES,
    **launch: Any,
) -> UserRun:
    """Run a kernel in every one of `schedules`, and fail if anything is found.

    - `kernel`: a UserKernel, or the path of a .cu or .ptx file with `entry` and `arch`.
    - `args`, `launch`: as in `UserKernel.run`: grid, block, dynamic_smem and others.

    Every run starts with the arrays as they were given. They hold the results of the first one
    afterwards, which is returned. Raises AssertionError with the findings and their lines.
    """
    if not isinstance(kernel, UserKernel):
        kernel = UserKernel.of_file(kernel, entry, arch=arch)
    given = deepcopy(args)
    runs = []
    for number, schedule in enumerate(schedules):
        mine = args if number == 0 else deepcopy(given)
        runs.append(_clean_run(kernel, mine, schedule, launch))
    return runs[0]


def _clean_run(
    kernel: UserKernel, args: Sequence[Any], schedule: str, launch: dict[str, Any]
) -> UserRun:
    try:
        result = kernel.run(*args, schedule=schedule, **launch)
    except LaunchError as error:
        raise AssertionError(f"{kernel.name}, {schedule}: {from_here(str(error))}") from error
    if result.findings:
        lines = finding_lines(result.findings, places=result.places)
        found = f"{len(result.findings)} findings" if len(result.findings) > 1 else "a finding"
        raise AssertionError("\n".join((f"{kernel.name}, {schedule}: {found}", *lines)))
    return result
