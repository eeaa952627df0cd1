# SPDX-License-Identifier: Apache-2.0
"""The scheduler, which decides which lanes run next.

A group is a selection of lanes that are about to run a basic block. Divergent branches split a
group. Groups that meet at a block in the same loop iteration merge. A unit is a warp, or a
warpgroup if the kernel has wgmma. Within a unit the group that is earliest in program order runs
first: earlier iterations before later ones, and loops before their exits. Between units the
schedule decides: all together, one unit as far as it gets, or at random. The hardware may run units
in any order, so the three schedules reveal what a kernel wrongly relies on.

A unit is one of all CTAs, unless CTAs learn from each other. Then the later half of them runs
before the other one when units run as far as they get, and a random half apart at random.

Lanes that spin until memory changes rest until nothing else can run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptx_emulator.choices import LOCKSTEP, SCHEDULES
from ptx_emulator.errors import DeadlockError, EmulatorError, EndlessError
from ptx_emulator.machine.barriers.paths import Place
from ptx_emulator.machine.barriers.waits import Wait
from ptx_emulator.machine.lanes import Bools, Ints, Selection
from ptx_emulator.machine.machine import Machine
from ptx_emulator.machine.spinning import Spinners

LOOKS = 512  # basic blocks between two looks at the time
MANY_TURNS = 1500  # of a loop; those of a kernel that ends are few where each takes long
MANY_WRONG_TURNS = 200  # where something was found, which makes them slow
MAX_STEPS = 5_000_000  # basic blocks; kernels of this project take some thousands in tests
WARPGROUP = 4


def check_schedule(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise EmulatorError(f"schedule {schedule!r}: use one of {', '.join(SCHEDULES)}")


@dataclass(eq=False)
class _Group:
    block: int
    lanes: Selection
    when: tuple[int, ...]  # position in program order, with the iterations of enclosing loops
    unit: int


@dataclass
class _Waiter:
    """Lanes that wait at an mbarrier: the block that ends there, and what they wait for."""

    block: int
    wait: Wait


class Scheduler:
    """Runs a machine to its end."""

    def __init__(
        self, machine: Machine, schedule: str, seed: int, patience: float | None = None
    ) -> None:
        self._machine = machine
        self._patience = patience  # seconds that a loop may take
        self._started = time.monotonic()
        self._together = schedule == LOCKSTEP
        self._random = random.Random(seed) if schedule == "random" else None
        self._unit = WARPGROUP if machine.program.uses_wgmma else 1
        self._groups: list[_Group] = []
        self._waiters: list[_Waiter] = []
        self._spinners = Spinners(machine)
        self._units = self._numbered_units()  # by lane
        headers = {header for nest in machine.program.loop_nests for header in nest}
        self._turns = {header: np.zeros(machine.num_lanes, np.int64) for header in headers}
        self._nests = self._by_block()
        self.steps = 0

    def run(self) -> None:
        machine = self._machine
        everyone = machine.lanes.numbers[machine.lanes.all.index]
        for lanes in self._by_unit(everyone):
            self._enter(0, lanes)
        with np.errstate(all="ignore"):
            while self._groups or self._anyone_waits():
                if not self._groups and not self._wake() and not self._spin():
                    raise DeadlockError(self._describe(), machine.findings.items)
                if self._groups:
                    self._step()

    def _anyone_waits(self) -> bool:
        machine = self._machine
        barriers = machine.named_barriers.any_open or machine.warp_barriers.any_open
        waiting = self._waiters or self._spinners or barriers
        return bool(waiting or machine.register_pool.anyone_waits)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            self._give_up(f"the kernel did not end within {MAX_STEPS} blocks")
        if self.steps % LOOKS == 0 and self._patience is not None:
            self._look_at_time(self._patience)
        machine, program = self._machine, self._machine.program
        group = self._next_group()
        block, lanes = program.blocks[group.block], group.lanes
        machine.counters.block(block.index, lanes.num_warps)
        if machine.written.in_doubt:
            machine.written.run(block.index, lanes)
        function = program.function(block.index, lanes.is_all)
        result = function(machine, lanes, machine.registers, machine.constants, machine.inputs)
        if not lanes.whole_warps:
            machine.paths.took(lanes, block.index, group.when)
        self._leave(Place(block.index, group.when), lanes, result)
        for at, numbers in machine.named_barriers.take_released():
            self._go_on(at, numbers)
        for at, numbers in machine.warp_barriers.take_released():
            self._go_on(at, numbers)

    def _look_at_time(self, patience: float) -> None:
        """Give up where lanes have gone round a loop for long, and often."""
        seconds = time.monotonic() - self._started
        if seconds < patience:
            return
        nests = self._machine.program.loop_nests
        many = MANY_WRONG_TURNS if len(self._machine.findings) else MANY_TURNS
        for group in self._groups:
            for header in nests[group.block]:
                turns = int(self._turns[header][group.lanes.first])
                if turns >= many:
                    instruction = self._machine.program.blocks[header].instructions[0]
                    self._give_up(
                        f"{turns} turns of the loop at {instruction.place} took"
                        f" {seconds:.0f} s and more are to come; pass a longer patience if it ends"
                    )

    def _give_up(self, why: str) -> None:
        raise EndlessError(f"{why}.\n{self._describe()}", self._machine.findings.items)

    def _next_group(self) -> _Group:
        """Return the group to run, merged with all others that can run with it."""
        candidates = self._groups
        if len(candidates) == 1 and self._random is None:
            return candidates.pop()
        if not self._together:
            chosen = self._random.choice(candidates) if self._random else candidates[-1]
            candidates = [group for group in candidates if group.unit == chosen.unit]
        when = min([group.when for group in candidates])
        merged = [group for group in candidates if group.when == when]
        first = merged[0]
        if len(merged) == 1:
            self._groups.remove(first)
            return first
        self._groups = [group for group in self._groups if group not in merged]
        numbers = self._machine.lanes.numbers
        together = np.concatenate([numbers[group.lanes.index] for group in merged])
        lanes = self._machine.lanes.gather(together)
        return _Group(first.block, lanes, first.when, self._units.item(lanes.first))

    def _by_block(self) -> list[list[tuple[int, Ints]]]:
        """The loops around each block: their places in program order, and the turns of lanes."""
        program = self._machine.program
        return [
            [(program.priorities[header], self._turns[header]) for header in nest]
            for nest in program.loop_nests
        ]

    def _numbered_units(self) -> Ints:
        lanes = self._machine.lanes
        if self._together:
            return np.zeros(lanes.count, np.int64)
        apart = np.zeros(lanes.num_ctas, np.int64)
        if self._machine.program.ctas_exchange:
            ctas = list(range(lanes.num_ctas))
            if self._random:
                self._random.shuffle(ctas)
            apart[ctas[lanes.num_ctas // 2 :]] = 1
        units = -(-lanes.warps_per_cta // self._unit)
        numbers: Ints = apart[lanes.cta] * units + lanes.warp // self._unit
        return numbers

    def _by_unit(self, numbers: Ints) -> Iterator[Selection]:
        if self._together:
            yield self._machine.lanes.gather(numbers)
            return
        units = self._units[numbers]
        for unit in np.unique(units):
            yield self._machine.lanes.gather(numbers[units == unit])

    def _leave(self, place: Place, lanes: Selection, result: Any) -> None:
        block = self._machine.program.blocks[place.block]
        match block.terminator:
            case "fall":
                self._enter(block.next, lanes, block.index)
            case "jump":
                self._enter(block.target, lanes, block.index)
            case "return":
                self._exit(lanes)
            case "branch":
                for target, part in self._split(lanes, result, block.target, block.next):
                    self._enter(target, part, block.index)
            case "branch_return":
                for target, part in self._split(lanes, result, None, block.next):
                    if target is None:
                        self._exit(part)
                    else:
                        self._enter(target, part, block.index)
            case "barrier":
                numbers, threads = result
                self._machine.named_barriers.wait(lanes, numbers, threads, place)
            case "warp_barrier":
                self._machine.warp_barriers.wait(lanes, result, place)
            case "cluster_wait":
                self._machine.named_barriers.cluster.wait(lanes, block.index)
            case "mbarrier_wait":
                address, parity = result
                wait = self._machine.mbarriers.wait(lanes, address.copy(), parity.copy())
                self._waiters.append(_Waiter(block.index, wait))
                self._wake()
            case "registers":
                grows, count = result
                pool = self._machine.register_pool
                for at, numbers in pool.change(lanes, grows, count, block.index):
                    self._go_on(at, numbers)

    def _exit(self, lanes: Selection) -> None:
        self._machine.named_barriers.exited(lanes)
        self._machine.warp_barriers.exited(lanes)

    def _split(
        self, lanes: Selection, taken: Bools, target: int | None, other: int | None
    ) -> Iterator[tuple[int | None, Selection]]:
        count = int(np.count_nonzero(taken))
        if count == lanes.count:
            yield target, lanes
        elif count == 0:
            yield other, lanes
        else:
            yield other, self._machine.lanes.part(lanes, ~taken)
            yield target, self._machine.lanes.part(lanes, taken)

    def _enter(self, block: int | None, lanes: Selection, source: int | None = None) -> None:
        """Move lanes to a block from `source`, and count the iterations of loops."""
        if block is None:
            raise EmulatorError("the kernel runs past its last instruction")
        program = self._machine.program
        if block in self._turns:
            again = source is not None and block in program.loop_nests[source]
            turns = self._turns[block]
            turns[lanes.index] = turns[lanes.index] + 1 if again else 0
            patience = program.waiting_loops.get(block)
            if again and patience is not None and int(turns[lanes.index][0]) % patience == 0:
                self._spinners.rest(block, lanes)
                return
        self._ready(block, lanes)

    def _ready(self, block: int, lanes: Selection) -> None:
        """Let lanes run a block, at their place in program order."""
        first, place = lanes.first, list[int]()
        for priority, turns in self._nests[block]:
            place += priority, turns.item(first)
        when = (*place, self._machine.program.priorities[block])
        self._groups.append(_Group(block, lanes, when, self._units.item(first)))

    def _go_on(self, block: int, numbers: Ints) -> None:
        """Let lanes continue after the wait at the end of `block`, by unit unless in lockstep."""
        after = self._machine.program.blocks[block].next
        for lanes in self._by_unit(numbers):
            self._enter(after, lanes, block)

    def _spin(self) -> bool:
        """Let lanes that rest look at memory again, unless they would find the same."""
        spinners = self._spinners.try_again()
        for spinner in spinners:
            self._ready(spinner.block, spinner.lanes)
        return bool(spinners)

    def _wake(self) -> bool:
        """Let lanes continue that waited for a phase that has completed."""
        woken = False
        machine, part_of = self._machine, self._machine.lanes.part
        still: list[_Waiter] = []
        for waiter in self._waiters:
            block, wait = machine.program.blocks[waiter.block], waiter.wait
            complete = machine.mbarriers.complete(wait, block.last)
            if not any(complete):
                still.append(waiter)
                continue
            woken = True
            lanes, address = wait.sel, wait.address
            if not all(complete):
                ready = np.array(complete)[wait.which]
                rest, late = part_of(wait.sel, ~ready), ~ready
                waits = machine.mbarriers.wait(rest, wait.address[late], wait.parity[late])
                still.append(_Waiter(waiter.block, waits))
                lanes, address = part_of(wait.sel, ready), address[ready]
            machine.mbarriers.acquire(lanes, address)
            self._enter(block.next, lanes, waiter.block)
        self._waiters = still
        return woken

    def _describe(self) -> str:
        program = self._machine.program
        lines = [f"{program.kernel.name} cannot go on:"]
        lines += [f"  {line}" for line in self._machine.register_pool.describe()]
        for waiter in self._waiters:
            instruction = program.blocks[waiter.block].instructions[-1]
            lines.append(f"  at {instruction.place}:")
            wait = waiter.wait
            waiting = self._machine.mbarriers.describe_waiters(wait.sel, wait.address, wait.parity)
            lines += [f"    {line}" for line in waiting]
        lines += self._spinners.describe()
        for group in self._groups:
            instruction = program.blocks[group.block].instructions[0]
            cta, warp = int(group.lanes.cta[0]), int(group.lanes.warp[0])
            others = f" and {group.lanes.num_warps - 1} more" if group.lanes.num_warps > 1 else ""
            lines.append(f"  CTA {cta} warp {warp}{others} runs at {instruction.place}")
        lines += [f"  {line}" for line in self._machine.named_barriers.describe()]
        lines += [f"  {line}" for line in self._machine.warp_barriers.describe()]
        return "\n".join(lines)
