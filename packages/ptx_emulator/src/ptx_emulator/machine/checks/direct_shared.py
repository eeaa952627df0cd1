# SPDX-License-Identifier: Apache-2.0
"""Accesses to shared memory, each as one call of native code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Bools, Ints, Mask
from ptx_emulator.machine.checks.accessors import Epochs, Read
from ptx_emulator.machine.checks.readers import Readers
from ptx_emulator.machine.checks.shadow_state import ShadowState
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.storage.storage import UNSIGNED, Storage
from ptx_emulator.native import Native
from ptx_emulator.native.frames import frame

MOST_VALUES = 4  # of a lane
NO_VALUES = (None,) * MOST_VALUES
FIELDS = 5  # of a lane that makes an access

_Key = tuple[tuple[int, ...], int, int]  # instructions, the bytes of an access and of a value


class DirectShared:
    """The accesses of which nothing has to be said. Where anything is unusual, or may be wrong,
    nothing is done, and the caller has to look."""

    def __init__(
        self,
        launch: Launch,
        native: Native,
        storage: Storage,
        state: ShadowState,
        readers: Readers,
        latest: tuple[Epochs, Epochs],
    ) -> None:
        self._launch = launch
        self._storage = storage
        self._native = native
        self._state = state
        self._readers, self._latest = readers, latest
        self._objects: Bools | None = None
        self._layout = -1
        self._frame: Ints = np.zeros(0, np.int64)
        self._sites: dict[_Key, tuple[Ints, Ints]] = {}  # frames, and what they point to

    def read(
        self,
        sel: Selection,
        where: NDArray[Any],
        nbytes: int,
        mask: Mask,
        pcs: tuple[int, ...],
        collective: bool,
        size: int = 0,
    ) -> tuple[Read, NDArray[Any] | None] | None:
        """Reads by all instructions of a run, with values of `size` bytes unless it is 0."""
        site, numbers = self._site(pcs, nbytes, size or nbytes)
        rows, count = len(pcs), sel.count
        places, who = np.empty((rows, count), np.int64), np.empty((FIELDS, count), np.int64)
        out = np.empty((rows * nbytes // size, count), UNSIGNED[size]) if size else None
        frames = self._current(), sel.frame, site, where, mask
        lanes = self._native.read_shared(*frames, collective, places, who, out)
        if lanes < 0:
            return None
        if lanes < count:
            places = places.reshape(-1)[: rows * lanes].reshape(rows, lanes)
        return Read(numbers[0], places, nbytes, who, collective), out

    def write(
        self,
        sel: Selection,
        where: NDArray[Any],
        nbytes: int,
        mask: Mask,
        pc: int,
        collective: bool,
        epochs: Ints | None,
        values: Sequence[NDArray[Any] | None] = NO_VALUES,
    ) -> tuple[int, Ints] | None:
        """Writes by the lanes or, in `epochs`, by their copy engines: how many lanes met another
        agent's, and the places of those that wrote."""
        self._state.prepare(nbytes)
        size = nbytes if values[0] is None else values[0].dtype.itemsize
        site, _ = self._site((pc,), nbytes, size)
        places, who = np.empty(sel.count, np.int64), np.empty((FIELDS, sel.count), np.int64)
        frames = self._current(), sel.frame, site, where, mask
        clashes = self._native.write_shared(*frames, collective, epochs, places, who, *values)
        return None if clashes < 0 else (clashes, places)

    def record(self, read: Read) -> None:
        """Enter reads into the tables."""
        pcs, places, nbytes, who, collective = read
        if not collective:
            self._state.prepare_reads(nbytes)
        self._native.record_reads(self._current(), pcs, places, nbytes, who, collective)

    def engine_write(
        self, first: int, last: int, seen: Epochs, me: tuple[int, int], written: tuple[int, ...]
    ) -> bool:
        """An engine writes chunks for the warp and lane `me`, who have `seen` what others did:
        agent, epoch and tag of the write are recorded if nothing has to be said of it."""
        given = self._current(), first, last, seen, *me, *written
        return bool(self._native.write_chunks(*given) >= 0)

    def engine_read(
        self, chunks: Ints, rows: Ints, readers: Ints, epochs: Ints, tag: int, looked_at: bool
    ) -> bool:
        """Engines read chunks; they are recorded if nothing has to be said, or was `looked_at`."""
        given = self._current(), chunks, rows, readers, epochs, tag, looked_at
        return bool(self._native.read_chunks(*given) >= 0)

    def read_in_bulk(
        self, chunks: Ints, row: int, me: tuple[int, int], reader: int, epoch: int, tag: int
    ) -> bool:
        """An engine reads chunks for a warp and a lane, or -1 if the lane does not act alone."""
        given = self._current(), chunks, row, *me, reader, epoch, tag
        return bool(self._native.read_in_bulk(*given) >= 0)

    def read_operands(
        self, chunks: Ints, starts: Ints, rows: Ints, readers: Ints, epochs: Epochs, tags: Ints
    ) -> bool:
        """Tensor cores read the same chunks [steps, n] from several starts [g] on."""
        given = self._current(), chunks, starts, rows, readers, epochs, tags
        return bool(self._native.read_operands(*given) >= 0)

    def hold(self, objects: Bools) -> None:
        """Where mbarriers are."""
        self._objects, self._layout = objects, -1

    def _site(self, pcs: tuple[int, ...], nbytes: int, size: int) -> tuple[Ints, Ints]:
        key = pcs, nbytes, size
        known = self._sites.get(key)
        if known is None:
            owners, whole = self._launch.shared_owners, (0, self._launch.shared_limit)
            bounds = [owners[pc][:2] if pc in owners else whole for pc in pcs]
            numbers = np.array([pcs, *zip(*bounds, strict=True)], np.int64)
            known = frame(len(pcs), *numbers, nbytes, size), numbers
            self._sites[key] = known
        return known

    def _current(self) -> Ints:
        """The frame of the memory, made anew if a table was."""
        state, launch = self._state, self._launch
        if self._layout != state.layout:
            self._layout = state.layout
            clocks = launch.clocks
            self._frame = frame(
                *(self._storage.bytes, launch.counters.shared_counts, clocks.seen),
                *(clocks.seen_by_lanes, clocks.seen_by_proxy, SHARED_BASE),
                *(clocks.num_agents, clocks.num_ctas),
                *(clocks.num_warps, clocks.warps_per_cta, *state.frame_of_writers()),
                *(state.num_chunks, *state.frame_of_reads(), len(self._readers.first)),
                *(*self._readers[:2], *self._latest),
                0 if self._objects is None else self._objects,
                int(launch.program.looks_at_shared_flags),
            )
        return self._frame
