# SPDX-License-Identifier: Apache-2.0
"""Run a program over a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from ptx_emulator.choices import LOCKSTEP
from ptx_emulator.errors import EmulatorError, EndlessError
from ptx_emulator.machine.launch.limits import check_launch
from ptx_emulator.machine.machine import Argument, Debugger, Machine
from ptx_emulator.machine.scheduler import Scheduler, check_schedule
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.machine.storage.storage import POISON
from ptx_emulator.program.program import Program
from ptx_emulator.second_look import RunResult, run_and_reconsider


def run(
    program: Program,
    memory: GlobalMemory,
    *,
    grid: tuple[int, int, int],
    block: int | tuple[int, int, int],
    args: Sequence[Argument],
    dynamic_smem: int = 0,
    schedule: str = "lockstep",
    seed: int = 0,
    checks: bool = True,
    cluster: tuple[int, int, int] | None = None,
    starts_early: bool = False,
    debugger: Debugger | None = None,
    patience: float | None = None,
) -> RunResult:
    """Run a kernel over a grid.

    - `program`: the kernel. `memory`: the global memory, which holds the output afterwards.
    - `grid`: the number of CTAs in x, y and z. `block`: the threads of a CTA, or those in x, y, z.
    - `args`: the kernel's parameters, as numbers, bytes, ctypes structures or TensorMaps.
    - `dynamic_smem`: bytes of dynamic shared memory of a CTA.
    - `schedule`: "lockstep", "depth-first" or "random", which is the order of the warps.
    - `seed`: the seed of a random schedule.
    - `cluster`: the CTAs of a cluster in x, y and z; None: as the kernel says.
    - `starts_early`: the kernel may start before the one that ran before it on `memory` has ended,
      and waits for it by griddepcontrol.wait.
    - `debugger`: is told of what its hooks, which the program has to have too, ask for.
    - `patience`: seconds after which a loop that goes on and on is given up; None: never.
    - `checks`: look for races and uninitialised reads, and count. Without it a run is faster.

    Where no order of the warps can change what a kernel does, unless something is found, the warps
    run together first, and in the order of the schedule if something was found. What may turn out
    to be harmless runs again: `second_look.py` says how.

    Returns a RunResult. Raises DeadlockError if no warp can continue, and EmulatorError if the
    launch is not valid.
    """
    check_schedule(schedule)
    shape = (block, 1, 1) if isinstance(block, int) else block
    check_launch(program, grid, shape, cluster, dynamic_smem)

    def launched(program: Program, fill: np.uint32 = POISON) -> Machine:
        given = grid, block, args, dynamic_smem, checks, cluster, starts_early, fill
        return Machine(program, memory, *given)

    def attempt(program: Program, fill: np.uint32) -> RunResult:
        if schedule != LOCKSTEP and checks and program.meets_at_barriers:
            together = _run_together(partial(launched, program, fill), memory, patience)
            if together is not None:
                return together
        with _freed(launched(program, fill)) as machine:
            return _run(machine, schedule, seed, patience)

    if debugger is not None:
        return _run(_told(launched(program), debugger), schedule, seed, patience)
    if not checks:
        return attempt(program, POISON)
    return run_and_reconsider(program, memory, attempt)


def _told(machine: Machine, debugger: Debugger) -> Machine:
    """The machine, whose debugger is told of it."""
    machine.debugger = debugger
    debugger.attach(machine)
    return machine


@contextmanager
def _freed(machine: Machine) -> Iterator[Machine]:
    """Free what a machine has after its run. It knows its units and they know it: Python would
    leave such a circle of megabytes for later."""
    try:
        yield machine
    finally:
        vars(machine).clear()


def _run_together(
    launched: Callable[[], Machine], memory: GlobalMemory, patience: float | None
) -> RunResult | None:
    """What a run gives in every order of the warps; None where the order may matter, and then
    nothing has happened."""
    before = memory.saved()  # a machine counts itself among those that use the memory
    with _freed(launched()) as machine:
        try:
            result = _run(machine, LOCKSTEP, 0, patience)
            if not result.findings and not machine.global_access.exchanges:
                return result
        except EndlessError:
            raise
        except EmulatorError:
            pass
    memory.restore(before)
    return None


def _run(machine: Machine, schedule: str, seed: int, patience: float | None) -> RunResult:
    if machine.checks:
        machine.report_text()
    scheduler = Scheduler(machine, schedule, seed, patience)
    scheduler.run()
    machine.shared.report_unfinished()
    machine.copies.report_unfinished()
    machine.mbarriers.report_unfinished()
    machine.bulk_groups.report_unfinished()
    machine.register_pool.report_incomplete()
    printed = "".join(machine.printer.texts)
    return RunResult(machine.findings.items, machine.counters, scheduler.steps, printed)
