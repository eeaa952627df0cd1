# SPDX-License-Identifier: Apache-2.0
"""A range of global memory, and who wrote every part of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.machine.access import Bools, Ints
from flash_attention.emulator.machine.cta_order import CtaOrder
from flash_attention.emulator.machine.storage import CHUNK

BY_ATOMICS = -1  # writer of bytes that atomics changed


class Allocation:
    """A range of global memory, and who wrote every part of it.

    Writers are numbers that no two CTAs of any launches share; 0 is nobody. They are kept for parts
    as small as the narrowest access so far.
    """

    def __init__(self, start: int, size: int, name: str, filled: bool, owned: Bools | None) -> None:
        self.start = start
        self.end = start + size
        self.name = name
        self.filled = filled
        self.owned = owned
        self.newest = 0  # the largest number of a writer
        self._part = CHUNK
        self._writer: NDArray[np.int32] = np.zeros(-(-size // CHUNK), np.int32)
        self._epoch: NDArray[np.int32] = np.zeros_like(self._writer)  # of a store, in its CTA
        self._changes: list[_Changes] = []  # the last atomics, and the last ones of another CTA

    def owns(self, offsets: Ints, nbytes: int) -> Bools:
        """Whether all bytes of the accesses at `offsets`, which lie inside, may be used."""
        if self.owned is None:
            return np.ones(len(offsets), bool)
        inside: Bools = self.owned[(offsets - self.start)[:, None] + np.arange(nbytes)].all(axis=1)
        return inside

    def unwritten(self, offsets: Ints, nbytes: int) -> Bools:
        """Which accesses touch bytes that neither the host nor a kernel ever wrote."""
        if self.filled:
            return np.zeros(len(offsets), bool)
        parts = self._parts(offsets, nbytes)
        unwritten: Bools = (self._writer.take(parts) == 0).any(axis=1)
        return unwritten

    def write(self, offsets: Ints, nbytes: int, ctas: Ints, order: CtaOrder, launch: int) -> Bools:
        """Record writes; returns those that meet a write of another CTA since writer `launch`, in
        no order."""
        parts = self._parts(offsets, nbytes)
        mine = (launch + 1 + ctas)[:, None]
        met = order.unseen(self._writer.take(parts), self._epoch.take(parts), ctas, launch)
        self._writer[parts] = mine
        self._epoch[parts] = order.epochs(ctas)[:, None]
        self.newest = max(self.newest, int(mine.max(initial=0)))
        at_once: Bools = (self._writer.take(parts) != mine).any(axis=1)
        return met | at_once

    @property
    def changed(self) -> bool:
        """Whether atomics ever changed anything here."""
        return bool(self._changes)

    def change(self, offsets: Ints, nbytes: int, ctas: Ints, order: CtaOrder, launch: int) -> Bools:
        """Record atomics; returns those that meet a store of another CTA since writer `launch`, in
        no order."""
        parts = self._parts(offsets, nbytes)
        before = self._writer.take(parts)
        met = order.unseen(before, self._epoch.take(parts), ctas, launch)
        writers, epochs = launch + 1 + ctas, order.epochs(ctas)
        mine = writers[:, None]
        self._writer[parts] = np.where(before == mine, mine, BY_ATOMICS)
        self.newest = max(self.newest, int(mine.max(initial=0)))
        if not self._changes:
            self._changes = [_Changes.none(len(self._writer)) for _ in range(2)]
        last, other = self._changes
        for writer in np.unique(writers):
            lanes = writers == writer
            places = parts[lanes].ravel()
            taken = places[last.writer[places] != writer]
            other.writer[taken], other.epoch[taken] = last.writer[taken], last.epoch[taken]
            last.writer[places], last.epoch[places] = writer, epochs[lanes][0]
        return met

    def unordered(
        self, offsets: Ints, nbytes: int, ctas: Ints, order: CtaOrder, launch: int
    ) -> Bools:
        """Which accesses meet a store or atomics of another CTA since writer `launch`, in no
        order."""
        parts = self._parts(offsets, nbytes)
        met = np.zeros(len(offsets), bool)
        for changes in (_Changes(self._writer, self._epoch), *self._changes):
            writers, epochs = changes.writer.take(parts), changes.epoch.take(parts)
            met |= order.unseen(writers, epochs, ctas, launch)
        return met

    def _parts(self, offsets: Ints, nbytes: int) -> Ints:
        granule = nbytes & -nbytes
        if granule < self._part:
            times = self._part // granule
            self._writer, self._epoch = self._writer.repeat(times), self._epoch.repeat(times)
            self._changes = [changes.cut(times) for changes in self._changes]
            self._part = granule
        first = (offsets - self.start) // self._part
        parts: Ints = first[:, None] + np.arange(nbytes // self._part)
        return parts


class _Changes(NamedTuple):
    """Who changed the parts of an allocation by atomics, and in which epoch of its CTA."""

    writer: NDArray[np.int32]
    epoch: NDArray[np.int32]

    @classmethod
    def none(cls, parts: int) -> _Changes:
        return cls(np.zeros(parts, np.int32), np.zeros(parts, np.int32))

    def cut(self, times: int) -> _Changes:
        return _Changes(self.writer.repeat(times), self.epoch.repeat(times))
