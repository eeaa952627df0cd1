# SPDX-License-Identifier: Apache-2.0
"""A range of global memory, and who touched every part of it."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Bools, Ints
from ptx_emulator.machine.storage.storage import CHUNK, sparse_zeros
from ptx_emulator.native import Native

Numbers = NDArray[np.int32]
NOBODY: Bools = np.zeros(0, bool)


class Touches(NamedTuple):
    """Who touched parts, by numbers that no two agents of any launches share (0 is nobody), in
    which epoch of theirs, and a tag that says how."""

    number: Numbers
    epoch: Numbers
    tag: Numbers

    def take(self, parts: Ints) -> Touches:
        return Touches(*(field.take(parts) for field in self))

    def put(self, parts: Ints, touches: Touches) -> None:
        for field, values in zip(self, touches, strict=True):
            field[parts] = values


class _Record:
    """The last touch of every part, and the last one before it by somebody else."""

    def __init__(self, table: Numbers) -> None:
        self.table = table  # the fields of the last touches, then of the others
        self.last, self.other = Touches(*table[:3]), Touches(*table[3:])

    @classmethod
    def of_nobody(cls, parts: int) -> _Record:
        return cls(sparse_zeros((6, parts), np.int32))

    def copied(self) -> _Record:
        return _Record(self.table.copy())

    def cut(self, times: int) -> _Record:
        """The same of parts that are so many times smaller."""
        return _Record(self.table.repeat(times, axis=1))

    def add(self, parts: Ints, mine: Touches) -> None:
        """Add touches [lanes, parts], of which some may meet."""
        before = self.last.take(parts)
        moved = (before.number != mine.number) & (before.number != 0)
        self.other.put(parts[moved], Touches(*(field[moved] for field in before)))
        self.last.put(parts, mine)
        lost = self.last.number.take(parts) != mine.number
        self.other.put(parts[lost], Touches(*(field[lost] for field in mine)))


class Allocation:
    """A range of global memory. Touches are kept for parts as small as the narrowest access."""

    def __init__(self, start: int, size: int, name: str, filled: bool, owned: Bools | None) -> None:
        self.start = start
        self.end = start + size
        self.name = name
        self.filled = filled
        self.owned = owned
        self.newest = 0  # the largest number of a writer
        self.newest_reader = 0
        self._part = CHUNK
        self._num_parts = -(-size // CHUNK)
        self._kept_writes: _Record | None = None
        self._reads: _Record | None = None

    @property
    def _writes(self) -> _Record:
        if self._kept_writes is None:
            self._kept_writes = _Record.of_nobody(self._num_parts)
        return self._kept_writes

    def copied(self) -> Allocation:
        """The allocation as it is now."""
        same = copy(self)
        same._kept_writes = self._writes.copied() if self.newest else None
        same._reads = None if self._reads is None else self._reads.copied()
        return same

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
        unwritten: Bools = (self._writes.last.number.take(parts) == 0).any(axis=1)
        return unwritten

    def count_unwritten(self, size: int) -> int:
        """How many elements of `size` bytes have bytes that neither the host nor a kernel wrote."""
        unset = self._writes.last.number == 0
        if self.filled or not unset.any():
            return 0
        of_bytes = unset.repeat(self._part)[: self.end - self.start]
        return int(np.count_nonzero(of_bytes.reshape(-1, size).any(axis=1)))

    def writes(self, offsets: Ints, nbytes: int) -> tuple[Touches, Touches]:
        """The last writes of the parts of accesses, [lanes, parts]: by somebody, by another."""
        parts = self._parts(offsets, nbytes)
        return self._writes.last.take(parts), self._writes.other.take(parts)

    def reads(self, offsets: Ints, nbytes: int) -> tuple[Touches, ...]:
        parts = self._parts(offsets, nbytes)
        if self._reads is None:
            return ()
        return self._reads.last.take(parts), self._reads.other.take(parts)

    def write(self, offsets: Ints, nbytes: int, mine: Touches, replaces: bool) -> Bools:
        """Record writes, one touch a lane, that replace what was written or add to it; returns
        those that meet one of another agent at once."""
        parts = self._parts(offsets, nbytes)
        touches = _spread(mine, parts)
        if replaces:
            self._writes.last.put(parts, touches)
            self._writes.other.number[parts] = 0
        else:
            self._writes.add(parts, touches)
        self.newest = max(self.newest, int(mine.number.max(initial=0)))
        return self._lost(parts, mine)

    def store(self, native: Native, offsets: Ints, nbytes: int, mine: Touches) -> Bools:
        """Like `write` of what replaces."""
        place = offsets, self.start, nbytes, self.part(nbytes)
        last, other = self._writes.last, self._writes.other
        self.newest = max(self.newest, int(np.maximum.reduce(mine.number)))
        if native.record_stores(*place, *last, other.number, *mine) == 0:
            return NOBODY
        return self.lost(offsets, nbytes, mine)

    def lost(self, offsets: Ints, nbytes: int, mine: Touches) -> Bools:
        """Whose stores are not the last ones at their places, [lanes]."""
        return self._lost(self._parts(offsets, nbytes), mine)

    def _lost(self, parts: Ints, mine: Touches) -> Bools:
        lost: Bools = (self._writes.last.number.take(parts) != mine.number[:, None]).any(axis=1)
        return lost

    def read(self, offsets: Ints, nbytes: int, mine: Touches) -> None:
        parts = self._parts(offsets, nbytes)
        self.keep_reads()
        assert self._reads is not None
        self._reads.add(parts, _spread(mine, parts))
        self.newest_reader = max(self.newest_reader, int(mine.number.max(initial=0)))

    def keep_reads(self) -> None:
        if self._reads is None:
            self._reads = _Record.of_nobody(self._num_parts)

    @property
    def tables(self) -> tuple[Numbers, Numbers | None]:
        """The touches of writers and of readers, as native code takes them."""
        return self._writes.table, None if self._reads is None else self._reads.table

    @property
    def write_records(self) -> tuple[Touches, ...]:
        return self._writes.last, self._writes.other

    @property
    def read_records(self) -> tuple[Touches, ...]:
        return () if self._reads is None else (self._reads.last, self._reads.other)

    def part(self, nbytes: int) -> int:
        """The bytes of a part, which is as small as an access of `nbytes` at most."""
        granule = nbytes & -nbytes
        if granule < self._part:
            times = self._part // granule
            if self._kept_writes is not None:
                self._kept_writes = self._kept_writes.cut(times)
            if self._reads is not None:
                self._reads = self._reads.cut(times)
            self._num_parts *= times
            self._part = granule
        return self._part

    def _parts(self, offsets: Ints, nbytes: int) -> Ints:
        self.part(nbytes)
        first = (offsets - self.start) // self._part
        parts: Ints = first[:, None] + np.arange(nbytes // self._part)
        return parts


def _spread(touches: Touches, parts: Ints) -> Touches:
    """Touches of lanes, for all parts of their accesses."""
    return Touches(*(np.broadcast_to(field[:, None], parts.shape) for field in touches))
