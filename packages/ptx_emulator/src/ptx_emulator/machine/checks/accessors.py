# SPDX-License-Identifier: Apache-2.0
"""Who accesses shared memory, as the race detector needs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.lanes import Bools, Ints

Epochs = NDArray[np.int32]


@dataclass
class Accessors:
    """The lanes of an access, with what the checks need of them; stays valid for one version.

    The agent of a lane is its warp, or the lane itself if it acts alone.
    """

    clock_row: Ints  # of the flattened clocks
    chunk_row: Ints  # of the flattened table of reads
    agent: Ints
    warp: Ints
    lane: Ints
    version: int
    epochs: Epochs
    oldest_seen: Epochs  # by reader, what every accessing warp has seen of it

    def part(self, mask: Bools) -> Accessors:
        return replace(
            self,
            clock_row=self.clock_row[mask],
            chunk_row=self.chunk_row[mask],
            agent=self.agent[mask],
            warp=self.warp[mask],
            lane=self.lane[mask],
            epochs=self.epochs[mask],
        )


class Read(NamedTuple):
    """Reads that are checked, by one instruction or by many.

    `who` has, by field and lane, the row of the flattened clocks, the agent, the lane, its epoch
    and the epoch until which its warp has met.
    """

    pcs: Ints
    places: Ints  # [instructions, lanes]
    nbytes: int
    who: Ints
    collective: bool  # by warps as a whole
