# SPDX-License-Identifier: Apache-2.0
"""Which lanes run together.

All CTAs of a grid run at once. Lanes are ordered [warp in CTA][CTA][lane], so that one warp of all
CTAs, or a role of several, is a contiguous slice and its registers are views.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.native.frames import frame

WARP_SIZE = 32
SHARED_BASE = 1024  # address of the first byte of shared memory: 0 is no valid address
LOCAL_BASE = 1 << 36
PARAM_BASE = 1 << 40
GLOBAL_BASE = 1 << 44
MOST_SCATTERED = 256  # selections that are no slices, and are remembered

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(eq=False)
class Selection:
    """Lanes that execute an instruction together, in lane order."""

    index: slice | Ints
    count: int
    lane: Ints
    cta: Ints
    warp: Ints  # warp in its CTA
    warp_id: Ints  # warp * num_ctas + cta
    shared_base: Ints  # flat byte offset of shared address 0 of the lane's CTA
    whole_warps: bool
    warps: Ints  # distinct warp ids
    is_all: bool
    key: Hashable | None  # equal keys, equal lanes; None for scattered ones
    memo: dict[Hashable, object] = field(default_factory=dict)  # what holds in every launch

    @cached_property
    def num_warps(self) -> int:
        return len(self.warps)

    @cached_property
    def first(self) -> int:
        """The number in the launch of its first lane."""
        return self.number(0)

    def number(self, lane: int) -> int:
        """The number in the launch of a lane of the selection."""
        return int(self.index.start + lane if isinstance(self.index, slice) else self.index[lane])

    @cached_property
    def by_one(self) -> bool:
        """Whether it is one lane, several times: an engine makes all the accesses for it."""
        if self.count < 2 or self.lane[0] != self.lane[-1]:
            return False
        return bool(self.warp_id[0] == self.warp_id[-1])

    @cached_property
    def frame(self) -> Ints:
        """The lanes as native code takes them."""
        return frame(self.count, self.warp_id, self.lane, self.warp, self.shared_base)

    @cached_property
    def alone(self) -> Bools:
        """Whether each lane is the only one of its warp."""
        if self.whole_warps:
            return np.zeros(self.count, bool)
        lanes = np.bincount(np.searchsorted(self.warps, self.warp_id))
        alone: Bools = np.repeat(lanes == 1, lanes)
        return alone

    @cached_property
    def warps_together(self) -> Ints:
        """The warps of which more than one lane is selected."""
        return self.warps if self.whole_warps else np.unique(self.warp_id[~self.alone])


class Lanes:
    """The lanes of a launch, and the selections made of them."""

    def __init__(
        self,
        num_ctas: int,
        warps_per_cta: int,
        shared_stride: int,
        block: int | None = None,
        ranks: int = 1,
    ) -> None:
        """Warps of CTAs, or of clusters of `ranks` CTAs with a part of shared memory each."""
        self.num_ctas = num_ctas
        self.warps_per_cta = warps_per_cta
        self.num_warps = num_ctas * warps_per_cta
        self.count = self.num_warps * WARP_SIZE
        self.numbers: Ints = np.arange(self.count)
        self.lane: Ints = self.numbers % WARP_SIZE
        self.warp_id: Ints = self.numbers // WARP_SIZE
        self.cta: Ints = self.warp_id % num_ctas
        self.warp: Ints = self.warp_id // num_ctas
        self._shared_stride, self._ranks = shared_stride, ranks
        self.rank: Ints = np.zeros(self.count, np.int64)  # without memory until it is written
        if ranks > 1:
            self.rank = self.warp // (warps_per_cta // ranks)
        self._shared_base: Ints = self.shared_base(self.cta, self.rank)
        threads = warps_per_cta * WARP_SIZE if block is None else block
        self._last_warp = slice(None) if threads % WARP_SIZE == 0 else slice(threads % WARP_SIZE)
        self.at_start: dict[tuple[int, int], NDArray[np.int32]] = {}  # clocks, by views and agents
        self._slices: dict[tuple[int, int], Selection] = {}
        self._scattered: dict[bytes, Selection] = {}
        self._repeated: dict[tuple[int, int], Selection] = {}
        self.missing: Bools = self.warp * WARP_SIZE + self.lane >= threads  # of the last warp

    def shared_base(self, cta: Any, rank: Any) -> Any:
        """Flat byte offset of shared address 0 of a CTA."""
        return (cta * self._ranks + rank) * self._shared_stride - SHARED_BASE

    @cached_property
    def all(self) -> Selection:
        """All threads of the launch; the last warp of a CTA may have fewer than 32."""
        return self.warps_of(0, self.warps_per_cta)

    def select(self, index: slice | Ints) -> Selection:
        """The selection of a slice or of sorted lane numbers; most are remembered."""
        if isinstance(index, slice):
            bounds = (int(index.start), int(index.stop))
            if bounds not in self._slices:
                self._slices[bounds] = self._make(index, bounds)
            return self._slices[bounds]
        key = index.tobytes()
        known = self._scattered.get(key)
        if known is None:
            if len(self._scattered) == MOST_SCATTERED:
                self._scattered.clear()
            known = self._scattered[key] = self._make(index, None)
        return known

    def repeated(self, number: int, count: int) -> Selection:
        """One lane, `count` times: it moves as many pieces."""
        key = number, count
        known = self._repeated.get(key)
        if known is None:
            if len(self._repeated) == MOST_SCATTERED:
                self._repeated.clear()
            known = self._repeated[key] = self._make(np.full(count, number), None)
        return known

    def gather(self, numbers: Ints) -> Selection:
        """The selection of lane numbers in any order; a slice where they are one."""
        if numbers is self.numbers:
            return self.select(slice(0, self.count))
        return self._sorted(np.sort(numbers))

    def _sorted(self, numbers: Ints) -> Selection:
        first, last = int(numbers[0]), int(numbers[-1])
        contiguous = len(numbers) == last - first + 1
        if contiguous and first % WARP_SIZE == 0 and len(numbers) % WARP_SIZE == 0:
            return self.select(slice(first, last + 1))
        return self.select(numbers)

    def part(self, selection: Selection, mask: Bools | None) -> Selection:
        """The lanes of a selection for which `mask` holds."""
        if mask is None:
            return selection
        return self._sorted(self.numbers[selection.index][mask])

    def warps_of(self, warp: int, count: int) -> Selection:
        """Warps `warp` .. `warp + count - 1` of every CTA."""
        per_warp = self.num_ctas * WARP_SIZE
        end = (warp + count) * per_warp
        if warp + count < self.warps_per_cta or self._last_warp == slice(None):
            return self.select(slice(warp * per_warp, end))
        last = self.numbers[end - per_warp : end].reshape(-1, WARP_SIZE)[:, self._last_warp]
        return self.gather(np.append(self.numbers[warp * per_warp : end - per_warp], last))

    def _make(self, index: slice | Ints, key: Hashable | None) -> Selection:
        warp_id = self.warp_id[index]
        count = len(warp_id)
        whole = count % WARP_SIZE == 0 and bool(
            (warp_id.reshape(-1, WARP_SIZE) == warp_id[::WARP_SIZE, None]).all()
            if count % WARP_SIZE == 0
            else False
        )
        return Selection(
            index=index,
            count=count,
            lane=self.lane[index],
            cta=self.cta[index],
            warp=self.warp[index],
            warp_id=warp_id,
            shared_base=self._shared_base[index],
            whole_warps=whole,
            warps=warp_id[::WARP_SIZE].copy() if whole else _distinct(warp_id),
            is_all=count == self.count,
            key=key,
        )


def _distinct(ascending: Ints) -> Ints:
    """The different values of an array that ascends."""
    new = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return ascending[new]
