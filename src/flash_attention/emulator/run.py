# SPDX-License-Identifier: Apache-2.0
"""Run a program over a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.emulator.errors import EmulatorError
from flash_attention.emulator.machine.counters import Counters
from flash_attention.emulator.machine.findings import Finding
from flash_attention.emulator.machine.global_memory import GlobalMemory
from flash_attention.emulator.machine.machine import Argument, Machine
from flash_attention.emulator.machine.scheduler import Scheduler
from flash_attention.emulator.program.program import Program


@dataclass(frozen=True)
class RunResult:
    """What was found and counted; the output is in the memory that was given."""

    findings: list[Finding]
    counters: Counters
    steps: int


def run(
    program: Program,
    memory: GlobalMemory,
    *,
    grid: tuple[int, int, int],
    block: int,
    args: Sequence[Argument],
    dynamic_smem: int = 0,
    schedule: str = "lockstep",
    seed: int = 0,
    checks: bool = True,
) -> RunResult:
    """Run every CTA of `grid`; `schedule` is "lockstep", "depth-first" or "random" (by `seed`).

    Without `checks`, races and uninitialised reads are not looked for and nothing is counted.
    """
    if min(*grid, block) < 1:
        raise EmulatorError(f"grid {grid} of {block} threads each: a GPU launches no empty grid")
    machine = Machine(program, memory, grid, block, args, dynamic_smem, checks)
    if checks:
        machine.report_in_flight()
    scheduler = Scheduler(machine, schedule, seed)
    scheduler.run()
    machine.copies.report_unfinished()
    machine.tma.report_unfinished()
    return RunResult(machine.findings.items, machine.counters, scheduler.steps)
