# SPDX-License-Identifier: Apache-2.0
"""The last writer and the last reads of every byte of shared memory.

State is kept for 16-byte chunks. Where a narrower store falls into a chunk, the chunk is split: its
writers are then kept by word, or by byte once something narrower than a word is stored or loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.checks.accessors import Epochs, Read
from ptx_emulator.machine.storage.storage import CHUNK, sparse_zeros

SPLIT = -1  # epoch of a chunk whose writers are kept by unit
COLLECTIVE = 32  # lane of accesses that a warp or an engine makes as a whole
SEVERAL = 33  # lane of reads that more than one lane made
LANE_BITS = 6
LANE_MASK = (1 << LANE_BITS) - 1

Ints = NDArray[np.int64]
Tags = NDArray[np.int32]  # pc << LANE_BITS | lane
Bools = NDArray[np.bool_]


@dataclass
class Writers:
    """The last writers of the parts of an access: arrays [lanes, parts]; epoch 0 is nobody."""

    epoch: Epochs
    agent: Ints
    tag: Tags


class _Units:
    """Writers and readers by unit of 4, 2 or 1 bytes; writers count where the chunk is split."""

    def __init__(self, num_bytes: int, readers: int) -> None:
        self.size = 4
        units = num_bytes // self.size
        self.epoch: Epochs = sparse_zeros((units,), np.int32)
        self.agent: NDArray[np.int16] = sparse_zeros((units,), np.int16)
        self.tag: Tags = sparse_zeros((units,), np.int32)
        self.read_epoch: Epochs = sparse_zeros((readers, units), np.int32)
        self.read_tag: Tags = sparse_zeros((readers, units), np.int32)
        self.any_read = False

    def of(self, offsets: Ints, nbytes: int) -> Ints:
        """Units [lanes, parts] of accesses of `nbytes` at `offsets`."""
        units: Ints = (offsets // self.size)[:, None] + np.arange(nbytes // self.size)
        return units

    def narrow(self, size: int) -> None:
        """Make the units as small as an access."""
        if size >= self.size:
            return
        times = self.size // size
        self.epoch = self.epoch.repeat(times)
        self.agent = self.agent.repeat(times)
        self.tag = self.tag.repeat(times)
        self.read_epoch = self.read_epoch.repeat(times, axis=1)
        self.read_tag = self.read_tag.repeat(times, axis=1)
        self.size = size


class ShadowState:
    """Tables over flat shared memory: epoch, agent and tag of writes, epoch and tag of reads.

    Reads are kept for every reader: the warps of a CTA first, then its engines. Only warps make
    accesses narrower than a chunk.
    """

    def __init__(self, num_bytes: int, warps: int, readers: int) -> None:
        self.num_chunks = num_bytes // CHUNK
        self.epoch: Epochs = np.zeros(self.num_chunks, np.int32)
        self.agent: Ints = np.zeros(self.num_chunks, np.int64)
        self.tag: Tags = np.zeros(self.num_chunks, np.int32)
        self._read_epoch: Epochs = sparse_zeros((readers * self.num_chunks,), np.int32)
        self._read_tag: Tags = sparse_zeros((readers * self.num_chunks,), np.int32)
        self._warps = warps
        self._units: _Units | None = None
        self.layout = 0  # changes with any table's place

    def frame_of_writers(self) -> tuple[Any, ...]:
        """The writers of chunks and of units, as they stand in a frame of native code."""
        fine = self._units
        if fine is None:
            return (self.epoch, self.agent, self.tag, 0, 0, 0, 0)
        units = fine.epoch, fine.agent, fine.tag, fine.size.bit_length() - 1
        return (self.epoch, self.agent, self.tag, *units)

    def frame_of_reads(self) -> tuple[Any, ...]:
        """How many units there are, and the reads of chunks and of units."""
        fine = self._units
        if fine is None or not fine.any_read:
            units = 0 if fine is None else fine.epoch.size
            return (units, self._read_epoch, self._read_tag, 0, 0)
        reads = self._read_epoch, self._read_tag, fine.read_epoch, fine.read_tag
        return (fine.epoch.size, *reads)

    def prepare(self, nbytes: int) -> None:
        """Let accesses of `nbytes` have units of their own."""
        if nbytes < CHUNK:
            fine = self._fine()
            if nbytes < fine.size:
                fine.narrow(nbytes)
                self.layout += 1

    def prepare_reads(self, nbytes: int) -> None:
        """Let reads of `nbytes` be recorded."""
        self.prepare(nbytes)
        if nbytes < CHUNK and not self._fine().any_read:
            self._fine().any_read = True
            self.layout += 1

    def last_writers(self, offsets: Ints, nbytes: int) -> Writers:
        chunks = offsets // CHUNK
        epoch = self.epoch.take(chunks)[:, None]
        agent = self.agent.take(chunks)[:, None]
        tag = self.tag.take(chunks)[:, None]
        split = epoch == SPLIT
        if self._units is None or not split.any():
            return Writers(epoch, agent, tag)
        self.prepare(nbytes)
        units = self._units.of(offsets, nbytes)
        return Writers(
            np.where(split, self._units.epoch.take(units), epoch),
            np.where(split, self._units.agent.take(units).astype(np.int64), agent),
            np.where(split, self._units.tag.take(units), tag),
        )

    def write(
        self, offsets: Ints, nbytes: int, agents: Ints, epochs: NDArray[Any], tags: Ints | int
    ) -> Bools:
        """Record writes; returns the lanes whose bytes another agent wrote at the same time."""
        chunks = offsets // CHUNK
        if nbytes == CHUNK:
            self.epoch[chunks] = epochs
            self.agent[chunks] = agents
            self.tag[chunks] = tags
            clash: Bools = self.agent.take(chunks) != agents
            return clash
        self.prepare(nbytes)
        fine = self._fine()
        units = fine.of(offsets, nbytes)
        self._split(fine, np.unique(chunks[self.epoch.take(chunks) != SPLIT]))
        fine.epoch[units] = epochs[:, None]
        fine.agent[units] = agents[:, None]
        fine.tag[units] = np.reshape(tags, (-1, 1))
        clash = (fine.agent.take(units) != agents[:, None]).any(axis=1)
        return clash

    def write_range(self, first: int, last: int, agent: int, epoch: int, tag: int) -> None:
        """Record that an engine writes chunks `first` .. `last - 1`."""
        self.epoch[first:last] = epoch
        self.agent[first:last] = agent
        self.tag[first:last] = tag

    def read(self, read: Read) -> None:
        """Record reads by NumPy: chunks that warps read as a whole, or what single lanes did."""
        _, agent, *_ = read.who
        for pc, places in zip(read.pcs.tolist(), read.places, strict=True):
            if read.collective:
                place = agent * self.num_chunks + places // CHUNK
                self._read_epoch[place] = read.who[3]
                self._read_tag[place] = COLLECTIVE + (pc << LANE_BITS)
            else:
                self._read_by_lanes(places, read.nbytes, read.who, pc)

    def _read_by_lanes(self, offsets: Ints, nbytes: int, who: Ints, pc: int) -> None:
        """Record reads of single lanes; lanes that read the same bytes since they met merge."""
        self.prepare_reads(nbytes)
        size, row, epoch, tag = CHUNK, self.num_chunks, self._read_epoch, self._read_tag
        if nbytes < CHUNK:
            fine = self._fine()
            size, row = fine.size, fine.epoch.size
            epoch, tag = fine.read_epoch.reshape(-1), fine.read_tag.reshape(-1)
        _, agent, lanes, epochs, synced = who
        place = (agent * row + offsets // size)[:, None] + np.arange(nbytes // size)
        lane = lanes[:, None]
        before = tag.take(place) & LANE_MASK
        others = (epoch.take(place) > synced[:, None]) & (before != lane) & (before != COLLECTIVE)
        mine = np.where(others, SEVERAL, lane) + (pc << LANE_BITS)
        epoch[place] = epochs[:, None]
        tag[place] = mine
        clash = tag.take(place) != mine
        if clash.any():
            tag[place[clash]] = SEVERAL + (pc << LANE_BITS)

    def read_by_engines(self, chunks: Ints, readers: Ints, epochs: NDArray[Any], tag: int) -> None:
        """Record chunks [g, n] that engines read."""
        place = readers[:, None] * self.num_chunks + chunks
        self._read_epoch[place] = epochs[:, None]
        self._read_tag[place] = tag

    def late_reads(
        self, readers: Ints | int, offsets: Ints, nbytes: int, known: NDArray[Any]
    ) -> tuple[Bools, Tags, Epochs]:
        """Which bytes a reader (one for all, or one a lane) read after `known`, with the tags and
        the epochs of these reads."""
        place = readers * self.num_chunks + offsets // CHUNK
        epochs = self._read_epoch.take(place)
        late = epochs > known
        tags = self._read_tag.take(place)
        fine = self._units
        if fine is None or not fine.any_read or not np.all(np.less(readers, self._warps)):
            return late, tags, epochs
        self.prepare(nbytes)
        parts = fine.of(offsets, nbytes)
        parts = np.reshape(readers, (-1, 1)) * fine.epoch.size + parts
        fine_epochs = fine.read_epoch.reshape(-1).take(parts)
        late_parts = fine_epochs > np.reshape(known, (-1, 1))
        part = late_parts.argmax(axis=1)[:, None]
        fine_tags = np.take_along_axis(fine.read_tag.reshape(-1).take(parts), part, axis=1)
        fine_epochs = np.take_along_axis(fine_epochs, part, axis=1)
        return (
            late | late_parts.any(axis=1),
            np.where(late, tags, fine_tags[:, 0]),
            np.where(late, epochs, fine_epochs[:, 0]),
        )

    def _split(self, fine: _Units, chunks: Ints) -> None:
        if chunks.size == 0:
            return
        parts = fine.of(chunks * CHUNK, CHUNK)
        fine.epoch[parts] = self.epoch[chunks][:, None]
        fine.agent[parts] = self.agent[chunks][:, None]
        fine.tag[parts] = self.tag[chunks][:, None]
        self.epoch[chunks] = SPLIT
        self.agent[chunks] = 0

    def _fine(self) -> _Units:
        if self._units is None:
            self._units = _Units(self.num_chunks * CHUNK, self._warps)
            self.layout += 1
        return self._units
