# SPDX-License-Identifier: Apache-2.0
"""What lanes of a warp exchange: shuffles, votes, reductions, elections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.errors import EmulatorError
from flash_attention.emulator.machine.lanes import WARP_SIZE, Bools, Selection

if TYPE_CHECKING:
    from flash_attention.emulator.machine.machine import Machine

Words = NDArray[np.uint32]

LANES = np.arange(WARP_SIZE)
REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class WarpUnit:
    """The exchanges of the warps of a selection."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def shuffle(
        self, s: Selection, mode: str, value: Words, lane: Words, clamp: Words, pc: int
    ) -> tuple[Words, Words]:
        """What each lane receives, and whether the lane it asked was in its segment."""
        self._need_whole(s, pc)
        values = value.reshape(-1, WARP_SIZE)
        asked = lane.reshape(-1, WARP_SIZE).astype(np.int64)
        bounds = clamp.reshape(-1, WARP_SIZE).astype(np.int64)
        segment = (bounds >> 8) & 31
        last = (LANES & segment) | (bounds & 31 & ~segment)
        if mode == "up":
            source = LANES - (asked & 31)
            inside = source >= last
        else:
            if mode == "down":
                source = LANES + (asked & 31)
            elif mode == "bfly":
                source = LANES ^ (asked & 31)
            else:
                source = (LANES & segment) | (asked & 31 & ~segment)
            inside = source <= last
        source = np.where(inside, source, LANES)
        taken = np.take_along_axis(values, source, axis=1)
        return taken.reshape(-1), inside.reshape(-1).astype(np.uint32)

    def vote(self, s: Selection, mode: str, value: Bools) -> NDArray[Any]:
        inverse, count = self._warp_index(s)
        yes = np.bincount(inverse, value, count)
        lanes = np.bincount(inverse, minlength=count)
        if mode == "ballot":
            ballots = np.bincount(inverse, value * (1 << s.lane), count)
            result: NDArray[Any] = ballots.astype(np.uint32)
        elif mode == "any":
            result = yes > 0
        elif mode == "all":
            result = yes == lanes
        else:
            result = (yes == 0) | (yes == lanes)
        return result[inverse]

    def reduce(self, s: Selection, operation: str, value: NDArray[Any], pc: int) -> NDArray[Any]:
        self._need_whole(s, pc)
        rows = value.reshape(-1, WARP_SIZE)
        result = REDUCTIONS[operation].reduce(rows, axis=1, dtype=value.dtype)
        return np.repeat(result, WARP_SIZE)

    def elect(self, s: Selection) -> tuple[Words, Words]:
        """The lowest lane of every warp, known to all of them."""
        _, first, inverse = np.unique(s.warp_id, return_index=True, return_inverse=True)
        leader = s.lane[first][inverse]
        return leader.astype(np.uint32), (s.lane == leader).astype(np.uint32)

    def active_mask(self, s: Selection) -> Words:
        inverse, count = self._warp_index(s)
        masks = np.bincount(inverse, (1 << s.lane).astype(np.float64), count)
        return masks.astype(np.uint32)[inverse]

    def _warp_index(self, s: Selection) -> tuple[NDArray[np.intp], int]:
        distinct, inverse = np.unique(s.warp_id, return_inverse=True)
        return inverse, len(distinct)

    def _need_whole(self, s: Selection, pc: int) -> None:
        if not s.whole_warps:
            instruction = self._machine.program.kernel.instructions[pc]
            raise EmulatorError(
                f"PTX line {instruction.ptx_line}: part of a warp runs {instruction.text}"
            )
