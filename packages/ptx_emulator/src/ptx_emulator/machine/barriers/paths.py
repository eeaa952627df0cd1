# SPDX-License-Identifier: Apache-2.0
"""How far lanes got that left the others of their warp, and who went past a barrier without it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptx_emulator.machine.lanes import WARP_SIZE, Ints, Selection
from ptx_emulator.machine.launch.launch import Launch

When = tuple[int, ...]  # position in program order, with the iterations of enclosing loops


class Place(NamedTuple):
    """A block, and when it runs."""

    block: int
    when: When


class Paths:
    """The last place of every lane of which others of its warp were elsewhere."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._acts = launch.program.acting_blocks
        self._places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._last: Ints = np.zeros(launch.num_lanes, np.int64)  # places counted from 1; 0 is none

    def took(self, lanes: Selection, block: int, when: When) -> None:
        """Lanes without the others of their warps run a block."""
        if self._acts[block]:
            place = Place(block, when)
            number = self._numbers.setdefault(place, len(self._places) + 1)
            if number > len(self._places):
                self._places.append(place)
            self._last[lanes.index] = number

    def past(self, warp: int, barrier: Place) -> list[tuple[int, Place]]:
        """The lanes of a warp that have ended, and were at a place behind a barrier: they did not
        end before it."""
        lanes = slice(warp * WARP_SIZE, (warp + 1) * WARP_SIZE)
        ended = np.flatnonzero(self._launch.gone[lanes] & (self._last[lanes] > 0))
        places = [(int(lane), self._places[self._last[lanes][lane] - 1]) for lane in ended]
        behind = [(lane, place) for lane, place in places if place.when > barrier.when]
        if not behind:
            return []
        reached = self._behind(barrier.block)
        return [(lane, place) for lane, place in behind if place.block in reached]

    def _behind(self, block: int) -> set[int]:
        """The blocks that can run after one."""
        blocks = self._launch.program.blocks
        found: set[int] = set()
        rest = list(blocks[block].successors)
        while rest:
            at = rest.pop()
            if at not in found:
                found.add(at)
                rest += blocks[at].successors
        return found
