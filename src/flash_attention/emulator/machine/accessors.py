# SPDX-License-Identifier: Apache-2.0
"""Who accesses shared memory, as the race detector needs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from flash_attention.emulator.machine.shadow_state import Bools, Epochs, Ints


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
    latest: Epochs  # by reader, the newest epoch of the accessing warps
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
    """A read that is checked; reads of lanes know the epochs that were in order with them."""

    pc: int
    offsets: Ints
    nbytes: int
    who: Accessors
    synced: Epochs | None
