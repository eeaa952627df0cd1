# SPDX-License-Identifier: Apache-2.0
"""Findings that a second run may show to be harmless.

Shared memory that nothing was written to may be read, if nothing comes of it: the rows of a ragged
tile are multiplied and never stored. Such a kernel runs again with other words in shared memory,
and is not blamed if it stores and prints the same.

Lanes of a warp may reach __syncwarp in several branches. Such a kernel runs again as a program in
which they wait for each other there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.launch.counters import Counters
from ptx_emulator.machine.launch.findings import Finding
from ptx_emulator.machine.storage.global_memory import GlobalMemory, Saved
from ptx_emulator.machine.storage.storage import POISON
from ptx_emulator.program.program import Program

UNINITIALISED, MEMBERMASK = "uninitialised-shared", "membermask"
FILLS = np.array([0x7B007B00, 0xFB00FB00], np.uint32)  # large and small, as any type of float


@dataclass(frozen=True)
class RunResult:
    """The findings and counters of a run. The output is in the global memory."""

    findings: list[Finding]  # the errors that were found
    counters: Counters
    steps: int  # basic blocks that were executed
    printed: str = ""  # by printf


Attempt = Callable[[Program, np.uint32], RunResult]  # with such words in shared memory


def run_and_reconsider(program: Program, memory: GlobalMemory, attempt: Attempt) -> RunResult:
    """Run a program by `attempt`, and again as often as it takes to know what is a mistake."""
    before = memory.saved()
    result = attempt(program, POISON)
    if _misses_lanes(program, result):
        after, before = memory.saved(), _rewound(memory, before)
        program = program.whose_lanes_wait
        try:
            result = attempt(program, POISON)
        except EmulatorError:
            memory.restore(after)
            return result
    if any(finding.kind == UNINITIALISED for finding in result.findings):
        after = memory.saved()
        if _does_the_same(result, program, memory, before, after, attempt):
            rest = [finding for finding in result.findings if finding.kind != UNINITIALISED]
            result = replace(result, findings=rest)
        memory.restore(after)
    return result


def _rewound(memory: GlobalMemory, before: Saved) -> Saved:
    """Restore the memory, and save it once more."""
    memory.restore(before)
    return memory.saved()


def _misses_lanes(program: Program, result: RunResult) -> bool:
    """Whether lanes met at __syncwarp without others that they name."""
    lines = {finding.ptx_line for finding in result.findings if finding.kind == MEMBERMASK}
    return bool(lines) and any(
        instruction.parts[:2] == ("bar", "warp") and instruction.ptx_line in lines
        for instruction in program.kernel.instructions
    )


def _does_the_same(
    result: RunResult,
    program: Program,
    memory: GlobalMemory,
    before: Saved,
    after: Saved,
    attempt: Attempt,
) -> bool:
    """Whether a kernel does the same with other words in shared memory."""
    for fill in FILLS:
        before = _rewound(memory, before)
        try:
            again = attempt(program, fill)
        except EmulatorError:
            return False
        if again.printed != result.printed or _others(again) != _others(result):
            return False
        if not np.array_equal(memory.bytes[: after.bytes.size], after.bytes):
            return False
    return True


def _others(result: RunResult) -> set[tuple[str, int | None, int | None]]:
    """What was found besides reads of what nothing was written to."""
    return {
        (finding.kind, finding.ptx_line, finding.other_ptx_line)
        for finding in result.findings
        if finding.kind != UNINITIALISED
    }
