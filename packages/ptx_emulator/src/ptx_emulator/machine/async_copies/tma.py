# SPDX-License-Identifier: Apache-2.0
"""Copies of boxes of tensors between global and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Access, Mask, Thread, executing
from ptx_emulator.machine.arithmetic.atomics import COPIED
from ptx_emulator.machine.async_copies.bulk_groups import BulkGroups
from ptx_emulator.machine.async_copies.copy_engine import SECTOR_BYTES, Chunks, CopyEngine
from ptx_emulator.machine.async_copies.tensor_map import CHUNK_BYTES, TensorMap, swizzle
from ptx_emulator.machine.barriers.mbarriers import MBarriers
from ptx_emulator.machine.lanes import GLOBAL_BASE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.global_access import GlobalAccess
from ptx_emulator.machine.memory.shared import SharedMemory

Array = NDArray[Any]
Place = tuple[Array, ...]  # of boxes: addresses of tensor maps, then one array per coordinate
_Bounds = tuple[tuple[int, int], ...]
# Bytes of an element, strides, steps and extents of a box.
_Shape = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]

SHARED_ALIGNMENT = 128
ADDED = "float32"
PATTERN_BYTES = 1024
MOST_CUTS = 256  # that are remembered


class _Pieces(NamedTuple):
    """The part of a box that lies in its tensor, cut into equal pieces of `size` bytes."""

    size: int
    offsets: NDArray[np.int64]  # in global memory, from the first piece
    places: NDArray[np.int64]  # in the box, in pieces
    extent: int  # bytes from the first piece to the end of the last
    counts: NDArray[np.int64]  # of the access
    whole: bool  # whether they are the box, piece by piece


class _Part(NamedTuple):
    """What of a box lies in its tensor, and the address of its first piece."""

    pieces: _Pieces
    first: int


class _Box(NamedTuple):
    """One box: its place in a tensor, and its chunks in shared memory."""

    tensor: TensorMap
    start: tuple[int, ...]
    part: _Part | None
    chunks: Chunks  # in the order of the box
    thread: Thread

    @property
    def stored_chunks(self) -> NDArray[np.int64]:
        """The chunks of every row that a store reads: those with columns of the tensor."""
        columns = min(self.tensor.box[0], self.tensor.dims[0] - self.start[0])
        count = -(-max(columns, 0) * self.tensor.element_bytes // CHUNK_BYTES)
        return self.chunks.places.reshape(-1, self.tensor.row_bytes // CHUNK_BYTES)[:, :count]


class Tma(CopyEngine):
    """Tensor copies. Data moves as late as the program's waits allow."""

    def __init__(
        self,
        launch: Launch,
        shared: SharedMemory,
        global_access: GlobalAccess,
        mbarriers: MBarriers,
        bulk_groups: BulkGroups,
        tensor_maps: Mapping[int, TensorMap],
    ) -> None:
        super().__init__(launch, shared, global_access, mbarriers, bulk_groups)
        self._tensor_maps = tensor_maps  # by the address of the parameter
        self._orders: dict[tuple[int, int, int], Chunks] = {}
        self._parts: dict[tuple[int, tuple[int, ...]], _Part | None] = {}  # of maps by address

    def load(
        self,
        sel: Selection,
        dst: Array,
        tensor: Place,
        mbarrier: Array,
        ranks: Array | None,
        mask: Mask,
        pc: int,
    ) -> None:
        """Global to shared: poison now, data when somebody waits for the mbarrier's phase.

        A multicast goes to all CTAs of the cluster that `ranks` names.
        """
        for thread in executing(sel, mask, pc):
            for to, completed in self.copies(thread, dst, mbarrier, ranks):
                box = self._box(thread, to, tensor)
                barrier = self._mbarriers.find(thread, completed)
                if box is None or barrier is None:
                    continue
                data = self._read_tensor(box)
                layout = box.tensor.swizzle, box.tensor.row_bytes
                self._shared.layouts.setdefault(pc, set()).add(layout)
                self.start_load(thread, box.chunks, data, barrier, box.tensor.box_bytes)

    def store(self, sel: Selection, tensor: Place, src: Array, mask: Mask, pc: int) -> None:
        """Shared to global: part of the thread's open bulk group."""
        for thread in executing(sel, mask, pc):
            box = self._box(thread, src, tensor, store=True)
            if box is not None:
                self._start(box, "tensor store", self._write)

    def add(self, sel: Selection, tensor: Place, src: Array, mask: Mask, pc: int) -> None:
        """Floats in shared memory are added to those of a tensor, each of them atomically."""
        for thread in executing(sel, mask, pc):
            box = self._box(thread, src, tensor, store=True)
            if box is None:
                continue
            if box.tensor.dtype != ADDED:
                raise EmulatorError(
                    f"additions to a tensor of {box.tensor.dtype or 'an unknown type'} are not"
                    f" emulated, those to one of {ADDED} are"
                )
            self._start(box, "tensor addition", self._add)

    def _start(self, box: _Box, what: str, land: Callable[[Access, Array], None]) -> None:
        """Take a box from shared memory; its pieces, and where they belong, go to `land`."""
        offsets, allowed = self._resolve(box, what)
        size = 0 if box.part is None else box.part.pieces.size
        target = self.access(box.thread, offsets, size, allowed, what)
        chunks = box.stored_chunks
        put = partial(self._put, box, chunks.shape, target, land)
        self.start_store(box.thread, chunks.ravel(), put, target)

    def prefetch(self, sel: Selection, tensor: Place, mask: Mask, pc: int) -> None:
        """Global to L2: the program sees no effect, but the box must be valid."""
        for thread in executing(sel, mask, pc):
            self._located(thread, tensor, store=False)

    def _located(
        self, thread: Thread, place: Place, store: bool
    ) -> tuple[TensorMap, tuple[int, ...]] | None:
        """The tensor and the coordinates of a box; None, and a finding, if it cannot be moved."""
        map_address, *coords = place
        tensor = self._tensor_maps.get(int(map_address[thread.lane]))
        if tensor is None or tensor.rank != len(coords):
            what = "no tensor map" if tensor is None else f"a tensor map of rank {tensor.rank}"
            detail = (
                f"there is {what} at this address; the instruction has {len(coords)} dimensions"
            )
            self.report("tma-tensor-map", detail, thread, map_address)
            return None
        start = tuple(int(coord[thread.lane]) for coord in coords)
        if fault := _coordinate_fault(tensor, start, store):
            self.report("tma-coordinates", fault, thread)
            return None
        return tensor, start

    def _box(
        self, thread: Thread, shared_address: Array, place: Place, *, store: bool = False
    ) -> _Box | None:
        """The box one thread asks for; None, and a finding, if it cannot be moved."""
        located = self._located(thread, place, store)
        if located is None:
            return None
        tensor, start = located
        address = int(shared_address[thread.lane])
        if address % SHARED_ALIGNMENT:
            detail = f"the shared address of a tensor copy is no multiple of {SHARED_ALIGNMENT}"
            self.report("tma-alignment", detail, thread, shared_address)
            address -= address % SHARED_ALIGNMENT
        order = self._order(tensor, address)
        chunks = self.chunks_in_shared(thread, address, order, "the box")
        if chunks is None:
            return None
        key = int(place[0][thread.lane]), start
        if key not in self._parts:
            self._parts[key] = _part(tensor, start)
        return _Box(tensor, start, self._parts[key], chunks, thread)

    def _order(self, tensor: TensorMap, address: int) -> Chunks:
        """Where the chunks of a box go, relative to its address."""
        near = address % PATTERN_BYTES
        key = tensor.swizzle, tensor.box_bytes, near
        if key not in self._orders:
            linear = np.arange(near, near + tensor.box_bytes, CHUNK_BYTES)
            places = (swizzle(linear, tensor.swizzle) - near) // CHUNK_BYTES
            self._orders[key] = Chunks(places, int(places.min()), int(places.max()) + 1)
        return self._orders[key]

    def _read_tensor(self, box: _Box) -> Array:
        """The chunks of a box; zero where it leaves the tensor."""
        offsets, allowed = self._resolve(box, "tensor load")
        if box.part is None:
            return np.zeros(box.tensor.box_bytes // CHUNK_BYTES, np.complex128)
        memory, pieces = self._global_access, box.part.pieces
        values = memory.storage.views[pieces.size].take(offsets // pieces.size)
        if allowed is not None:
            data = np.zeros(box.tensor.box_bytes, np.uint8)
            data.view(values.dtype)[pieces.places[allowed]] = values[allowed]
            return data.view(np.complex128)
        if self._launch.checks and memory.watches(int(offsets[0])):
            memory.check_read(self.access(box.thread, offsets, pieces.size, None, "tensor load"))
        if pieces.whole:
            return values.view(np.complex128)
        data = np.zeros(box.tensor.box_bytes, np.uint8)
        data.view(values.dtype)[pieces.places] = values
        return data.view(np.complex128)

    def _put(
        self,
        box: _Box,
        shape: tuple[int, ...],
        place: Access,
        land: Callable[[Access, Array], None],
        data: Array,
    ) -> None:
        """Cut what was read into pieces; what lies outside of the tensor is dropped. `shape` is
        that of the chunks."""
        if box.part is None:
            return
        pieces = box.part.pieces
        rows = data.reshape(shape[0], -1)
        if rows.shape[1] < box.tensor.row_bytes:
            rows = np.zeros((shape[0], box.tensor.row_bytes), np.uint8)
            rows[:, : shape[1] * CHUNK_BYTES] = data.reshape(shape[0], -1)
        values = rows.reshape(-1).view(self._global_access.storage.views[pieces.size].dtype)
        land(place, values if pieces.whole else values.take(pieces.places))

    def _add(self, place: Access, values: Array) -> None:
        floats = values.view(np.float32).reshape(len(values), -1)
        self._global_access.change(place, "add", COPIED, list(floats.T))

    def _write(self, place: Access, values: Array) -> None:
        memory = self._global_access
        if self._launch.checks:
            memory.check_write(place)
        target, where = memory.storage.views[place.nbytes], place.where // place.nbytes
        if place.mask is None:
            target[where] = values
        else:
            target[where[place.mask]] = values[place.mask]

    def _resolve(self, box: _Box, what: str) -> tuple[NDArray[np.int64], Mask]:
        """The offsets of the pieces of a box in global memory, and which may be accessed."""
        if box.part is None:
            return np.zeros(0, np.int64), None
        pieces, first = box.part
        if self._launch.checks:
            self._launch.counters.global_counts[box.thread.pc] += pieces.counts
        memory, begin = self._global_access, first - GLOBAL_BASE
        if memory.covers(begin, begin + pieces.extent):
            return begin + pieces.offsets, None
        where = first + pieces.offsets
        resolved = memory.resolve(self.access(box.thread, where, pieces.size, None, what))
        return resolved.where, resolved.mask


def _coordinate_fault(tensor: TensorMap, start: tuple[int, ...], store: bool) -> str | None:
    """What an H200 does not do: it stops with an illegal instruction, or stores too much."""
    if start[0] * tensor.element_bytes % CHUNK_BYTES:
        return f"the innermost coordinate {start[0]} is no multiple of 16 bytes: the GPU traps"
    if store and min(start) < 0:
        return f"a tensor store at {start}, before the tensor: the GPU traps"
    ragged = tensor.dims[0] * tensor.element_bytes % CHUNK_BYTES
    if store and ragged and start[0] + tensor.box[0] > tensor.dims[0] > start[0]:
        return f"rows of {tensor.dims[0]} elements: a store is clipped at 16 bytes, not at the row"
    return None


def _part(tensor: TensorMap, start: tuple[int, ...]) -> _Part | None:
    """What of a box lies in its tensor, or None."""
    address, inside = tensor.address, []
    pitches = tensor.element_bytes, *tensor.strides
    axes = zip(start, tensor.extents, tensor.dims, tensor.steps, pitches, strict=True)
    for first, extent, dim, step, pitch in axes:
        low, high = max(0, -(first // step)), min(extent, -((first - dim) // step))
        if low >= high:
            return None
        inside.append((low, high))
        address += (first + low * step) * pitch
    shape = tensor.element_bytes, tensor.strides, tensor.steps, tensor.extents
    return _Part(_cut(shape, tuple(inside), address % SECTOR_BYTES), address)


@lru_cache(maxsize=MOST_CUTS)
def _cut(shape: _Shape, inside: _Bounds, residue: int) -> _Pieces:
    """Cut the part of a box inside its tensor; `residue` is its first address modulo a sector."""
    element, strides, steps, extents = shape
    (low, high), *outer = inside
    first, row = low * element, (high - low) * element
    common = first | row | residue | CHUNK_BYTES
    size = common & -common
    offsets = np.arange(0, row, size)
    places = np.arange(first, first + row, size)
    pitch = extents[0] * element
    of_dims = zip(outer, strides, steps[1:], extents[1:], strict=True)
    for (low, high), stride, step, extent in of_dims:
        rows = np.arange(high - low)[:, None]
        offsets = (rows * step * stride + offsets).ravel()
        places = ((rows + low) * pitch + places).ravel()
        pitch *= extent
    sectors = len(np.unique((offsets + residue) // SECTOR_BYTES))
    moved = size * len(offsets)
    counts = np.array([1, sectors, -(-moved // SECTOR_BYTES), moved, 1])
    extent = int(offsets[-1]) + size
    return _Pieces(size, offsets, places // size, extent, counts, moved == pitch)
