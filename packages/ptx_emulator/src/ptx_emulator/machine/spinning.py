# SPDX-License-Identifier: Apache-2.0
"""Lanes that go round a loop until another thread changes memory.

They rest until nothing else can run, and then try again together. Once they have tried, and neither
memory nor their registers have changed, they would do the same forever.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.machine import Machine


@dataclass
class Spinner:
    """Lanes at the header of their loop."""

    block: int
    lanes: Selection


class Spinners:
    """All lanes that rest."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._resting: list[Spinner] = []
        self._tried: object = None  # with what they tried last

    def __bool__(self) -> bool:
        return bool(self._resting)

    def rest(self, block: int, lanes: Selection) -> None:
        self._resting.append(Spinner(block, lanes))

    def try_again(self) -> list[Spinner]:
        """Those that rest, who do so no more; none if they would find what they found before."""
        self._resting.sort(key=lambda at: (int(at.lanes.warp_id[0]), int(at.lanes.lane[0])))
        state = self._state()
        if not self._resting or state == self._tried:
            return []
        self._tried = state
        awake, self._resting = self._resting, []
        return awake

    def describe(self) -> list[str]:
        program = self._machine.program
        lines = []
        for spinner in self._resting:
            instruction = program.blocks[spinner.block].instructions[0]
            lanes = spinner.lanes
            places = zip(lanes.cta.tolist(), lanes.warp.tolist(), strict=True)
            lines.append(f"  in the loop at {instruction.place}:")
            lines += [
                f"    CTA {cta} warp {warp} reads memory until it changes"
                for cta, warp in dict.fromkeys(places)
            ]
        return lines

    def _state(self) -> tuple[object, ...]:
        """All that what they do next depends on."""
        machine, program = self._machine, self._machine.program
        registers = tuple(
            machine.registers[slot][spinner.lanes.index].tobytes()
            for spinner in self._resting
            for slot in program.live_slots(spinner.block)
        )
        lanes = tuple(
            (spinner.block, machine.lanes.numbers[spinner.lanes.index].tobytes())
            for spinner in self._resting
        )
        changes = machine.shared.storage.changes, machine.global_access.storage.changes
        return machine.ticks, changes, lanes, registers
