# SPDX-License-Identifier: Apache-2.0
"""Copies of boxes of tensors between global and shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Mask, Thread, executing
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

SHARED_ALIGNMENT = 128
PATTERN_BYTES = 1024


@dataclass(frozen=True)
class _Pieces:
    """The part of a box that lies in its tensor, cut into equal pieces of `size` bytes."""

    size: int
    offsets: NDArray[np.int64]  # in global memory, from the first piece
    places: NDArray[np.int64]  # in the box, in pieces
    extent: int  # bytes from the first piece to the end of the last
    sectors: int


@dataclass(frozen=True)
class _Box:
    """One box: its place in a tensor, and its chunks in shared memory."""

    tensor: TensorMap
    start: tuple[int, ...]
    chunks: Chunks  # in the order of the box
    thread: Thread

    @property
    def inside(self) -> tuple[tuple[int, int], ...] | None:
        """The range of every dimension that lies in the tensor, relative to the box, or None."""
        tensor = self.tensor
        bounds = tuple(
            (max(0, -(start // step)), min(extent, -((start - dim) // step)))
            for start, extent, dim, step in zip(
                *(self.start, tensor.extents, tensor.dims, tensor.steps), strict=True
            )
        )
        return bounds if all(low < high for low, high in bounds) else None

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
        self._pieces: dict[tuple[TensorMap, _Bounds, int], _Pieces] = {}

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
                pieces, offsets, allowed = self._resolve(box, "tensor store")
                size = 0 if pieces is None else pieces.size
                target = self.access(thread, offsets, size, allowed, "tensor store")
                put = partial(self._write_tensor, box, pieces, target)
                self.start_store(thread, box.stored_chunks.ravel(), put, target)

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
        return _Box(tensor, start, chunks, thread)

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
        pieces, offsets, allowed = self._resolve(box, "tensor load")
        data = np.zeros(box.tensor.box_bytes, np.uint8)
        if pieces is not None:
            memory = self._global_access
            shift = pieces.size.bit_length() - 1
            values = memory.storage.views[pieces.size].take(offsets >> shift)
            wide = data.view(values.dtype)
            if allowed is None:
                wide[pieces.places] = values
                if self._launch.checks and memory.watches(int(offsets[0])):
                    access = self.access(box.thread, offsets, pieces.size, None, "tensor load")
                    memory.check_read(access)
            else:
                wide[pieces.places[allowed]] = values[allowed]
        return data.view(np.complex128)

    def _write_tensor(self, box: _Box, pieces: _Pieces | None, place: Access, data: Array) -> None:
        """Put what a store read into its tensor; what lies outside is dropped."""
        if pieces is None:
            return
        memory = self._global_access
        if self._launch.checks:
            memory.check_write(place)
        target = memory.storage.views[pieces.size]
        stored = data.reshape(len(box.stored_chunks), -1)
        rows = np.zeros((len(stored), box.tensor.row_bytes), np.uint8)
        rows[:, : stored.shape[1]] = stored
        values = rows.view(target.dtype).ravel()[pieces.places]
        chosen = slice(None) if place.mask is None else place.mask
        target[place.where[chosen] // pieces.size] = values[chosen]

    def _resolve(self, box: _Box, what: str) -> tuple[_Pieces | None, NDArray[np.int64], Mask]:
        """The pieces of a box, their offsets in global memory, and which may be accessed."""
        inside = box.inside
        if inside is None:
            return None, np.zeros(0, np.int64), None
        tensor = box.tensor
        strides = (tensor.element_bytes, *tensor.strides)
        first = tensor.address + sum(
            (start + low * step) * stride
            for start, (low, _), step, stride in zip(
                *(box.start, inside, tensor.steps, strides), strict=True
            )
        )
        key = tensor, inside, first % SECTOR_BYTES
        pieces = self._pieces.get(key)
        if pieces is None:
            pieces = self._pieces[key] = _cut(*key)
        if self._launch.checks:
            moved = pieces.size * len(pieces.offsets)
            self._launch.counters.add_global(
                box.thread.pc, 1, pieces.sectors, -(-moved // SECTOR_BYTES), moved
            )
        memory = self._global_access
        begin = first - GLOBAL_BASE
        if memory.covers(begin, begin + pieces.extent):
            return pieces, begin + pieces.offsets, None
        where = first + pieces.offsets
        resolved = memory.resolve(self.access(box.thread, where, pieces.size, None, what))
        return pieces, resolved.where, resolved.mask


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


def _cut(tensor: TensorMap, inside: _Bounds, residue: int) -> _Pieces:
    """Cut the part of a box inside its tensor; `residue` is its first address modulo a sector."""
    element = tensor.element_bytes
    (low, high), *outer = inside
    first, row = low * element, (high - low) * element
    common = first | row | residue | CHUNK_BYTES
    size = common & -common
    offsets = np.arange(0, row, size)
    places = np.arange(first, first + row, size)
    pitch = tensor.row_bytes
    of_dims = zip(outer, tensor.strides, tensor.steps[1:], tensor.extents[1:], strict=True)
    for (low, high), stride, step, extent in of_dims:
        rows = np.arange(high - low)[:, None]
        offsets = (rows * step * stride + offsets).ravel()
        places = ((rows + low) * pitch + places).ravel()
        pitch *= extent
    sectors = len(np.unique((offsets + residue) // SECTOR_BYTES))
    extent = int(offsets[-1]) + size
    return _Pieces(size, offsets, places // size, extent, sectors)
