# SPDX-License-Identifier: Apache-2.0
"""Who touches memory: an access of many lanes by one instruction, and one lane that executes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.lanes import Selection

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Mask = Bools | None


class Access(NamedTuple):
    """An access to memory by the lanes of `sel` for which `mask` holds; None: by all of them.

    `where` is an address a lane. Once a memory has resolved the access it is a safe offset in that
    memory, and `mask` holds for the lanes that may access theirs.
    """

    sel: Selection
    where: NDArray[Any]
    nbytes: int
    mask: Mask
    pc: int
    what: str
    align: int = 0  # of the address; 0: as wide as the access

    @property
    def lanes(self) -> Ints:
        """Numbers, inside the selection, of the lanes that make the access."""
        return np.arange(self.sel.count) if self.mask is None else np.flatnonzero(self.mask)


class Thread(NamedTuple):
    """One lane of a selection, by its number there, that executes the instruction `pc`."""

    sel: Selection
    lane: int
    pc: int
    alone: bool = False  # whether no other lane of its warp executes it

    @property
    def mask(self) -> Bools:
        """It alone, among the lanes of the selection."""
        alone: Bools = np.arange(self.sel.count) == self.lane
        return alone

    @property
    def cta(self) -> int:
        return int(self.sel.cta[self.lane])

    @property
    def warp(self) -> int:
        return int(self.sel.warp[self.lane])

    @property
    def warp_id(self) -> int:
        return int(self.sel.warp_id[self.lane])


def alike(values: NDArray[Any]) -> bool:
    """Whether all numbers are the same; of few lanes this is quicker than to compare them."""
    return values.tobytes() == values[:1].tobytes() * len(values)


def executing(sel: Selection, mask: Mask, pc: int) -> list[Thread]:
    """The lanes of `sel` for which `mask` holds, one by one."""
    alone = alone_among(sel, mask)
    lanes = range(sel.count) if mask is None else np.flatnonzero(mask).tolist()
    return [Thread(sel, lane, pc, bool(alone[lane])) for lane in lanes]


def alone_among(sel: Selection, mask: Mask) -> Bools:
    """Whether each lane for which `mask` holds is the only one of its warp."""
    if mask is None:
        return sel.alone
    warps = np.searchsorted(sel.warps, sel.warp_id)
    alone: Bools = mask & (np.bincount(warps, mask, sel.num_warps) == 1)[warps]
    return alone


def actors(access: Access) -> list[tuple[int, bool, int]]:
    """Who makes a resolved access: warps, whether one lane of theirs acts alone, and places."""
    lanes = access.lanes
    alone = alone_among(access.sel, access.mask)[lanes]
    keys = np.stack((access.where[lanes], access.sel.warp_id[lanes], alone), axis=1)
    return [(warp, bool(alone), place) for place, warp, alone in np.unique(keys, axis=0).tolist()]
