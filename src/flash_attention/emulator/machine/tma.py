# SPDX-License-Identifier: Apache-2.0
"""Tensor copies between global and shared memory, and the bulk groups that stores belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.machine.access import Access, Mask, Thread, executing
from flash_attention.emulator.machine.lanes import GLOBAL_BASE, SHARED_BASE
from flash_attention.emulator.machine.storage import POISONED
from flash_attention.emulator.machine.tensor_map import CHUNK_BYTES, TensorMap, swizzle

if TYPE_CHECKING:
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.machine.machine import Machine

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Place = tuple[Array, ...]  # of boxes: addresses of tensor maps, then one array per coordinate
_Bounds = tuple[tuple[int, int], ...]

SHARED_ALIGNMENT = 128
PATTERN_BYTES = 1024
SECTOR_BYTES = 32


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
    chunks: NDArray[np.int64]  # flat 16-byte chunks, in the order of the box
    thread: Thread

    @property
    def inside(self) -> tuple[tuple[int, int], ...] | None:
        """The range of every dimension that lies in the tensor, relative to the box, or None."""
        bounds = tuple(
            (max(0, -start), min(extent, dim - start))
            for start, extent, dim in zip(
                self.start, self.tensor.box, self.tensor.dims, strict=True
            )
        )
        return bounds if all(low < high for low, high in bounds) else None


@dataclass
class _Store:
    """A store in flight. `data` is what it has read from shared memory, or None."""

    box: _Box
    epoch: int
    data: Array | None = None


@dataclass
class _Queue:
    """The stores of one thread: those of the open group, and the committed groups in order."""

    open: list[_Store] = field(default_factory=list)
    groups: list[list[_Store]] = field(default_factory=list)


class Tma:
    """The copy engine. Data moves as late as the program's waits allow."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._orders: dict[tuple[int, int, int], NDArray[np.int64]] = {}
        self._pieces: dict[tuple[TensorMap, _Bounds, int], _Pieces] = {}
        self._queues: dict[int, _Queue] = {}
        self._epochs = np.zeros(machine.num_warps, np.int32)

    def load(
        self, sel: Selection, dst: Array, tensor: Place, mbarrier: Array, mask: Mask, pc: int
    ) -> None:
        """Global to shared: poison now, data when somebody waits for the mbarrier's phase."""
        machine = self._machine
        for thread in executing(sel, mask, pc):
            box = self._box(thread, dst, tensor)
            barrier = machine.mbarriers.find(thread, mbarrier)
            if box is None or barrier is None:
                continue
            data = self._read_tensor(box)
            chunks = machine.shared.chunks

            def land(to: Array = box.chunks, data: Array = data, chunks: Array = chunks) -> None:
                chunks[to] = data

            number = int(machine.lanes.numbers[sel.index][thread.lane])
            agent, epoch = machine.mbarriers.start_transfer(
                barrier, box.tensor.box_bytes, number, pc, land
            )
            machine.shared.engine_write(thread, *_range(box.chunks), agent, epoch)
            chunks[box.chunks] = POISONED[CHUNK_BYTES]

    def store(self, sel: Selection, tensor: Place, src: Array, mask: Mask, pc: int) -> None:
        """Shared to global: part of the thread's open bulk group."""
        machine = self._machine
        numbers = machine.lanes.numbers[sel.index]
        for thread in executing(sel, mask, pc):
            box = self._box(thread, src, tensor, store=True)
            if box is None:
                continue
            self._epochs[thread.warp_id] += 1
            epoch = int(self._epochs[thread.warp_id])
            machine.shared.engine_read(
                box.chunks[None],
                np.array([[thread.warp_id]]),
                np.array([machine.clocks.bulk_agent(thread.warp)]),
                np.array([epoch]),
                sel,
                pc,
            )
            queue = self._queues.setdefault(int(numbers[thread.lane]), _Queue())
            queue.open.append(_Store(box, epoch))

    def prefetch(self, sel: Selection, tensor: Place, mask: Mask, pc: int) -> None:
        """Global to L2: the program sees no effect, but the box must be valid."""
        for thread in executing(sel, mask, pc):
            self._located(thread, tensor, store=False)

    def commit(self, sel: Selection) -> None:
        """cp.async.bulk.commit_group: the open group of each thread is complete."""
        for queue in self._queues_of(sel):
            queue.groups.append(queue.open)
            queue.open = []

    def wait(self, sel: Selection, pending: int, read: bool) -> None:
        """cp.async.bulk.wait_group: all but the newest `pending` groups of each thread are over.

        With `read`, their reads of shared memory are; their writes may still be on the way.
        """
        clocks = self._machine.clocks
        for queue in self._queues_of(sel):
            over = max(0, len(queue.groups) - pending)
            for store in (store for group in queue.groups[:over] for store in group):
                self._read_shared(store)
                box = store.box
                seen = clocks.seen[box.thread.warp_id]
                agent = clocks.bulk_agent(box.thread.warp)
                seen[agent] = max(seen[agent], store.epoch)
                if not read:
                    self._write_tensor(store)
            if not read:
                del queue.groups[:over]

    def report_unfinished(self) -> None:
        """At the end of the kernel, complete what is in flight and report missing waits."""
        for transfer in self._machine.mbarriers.unfinished():
            sel = self._machine.lanes.select(np.array([transfer.lane]))
            detail = "the kernel ends while a bulk load nobody waited for is on its way"
            self._report("bulk-load-unwaited", detail, Thread(sel, 0, transfer.pc))
        for queue in self._queues.values():
            for store in (store for group in (*queue.groups, queue.open) for store in group):
                if store.data is None:
                    detail = "the thread exits while its bulk store reads shared memory"
                    self._report("bulk-store-unwaited", detail, store.box.thread)
                    self._read_shared(store)
                self._write_tensor(store)
        self._queues = {}

    def _located(
        self, thread: Thread, place: Place, store: bool
    ) -> tuple[TensorMap, tuple[int, ...]] | None:
        """The tensor and the coordinates of a box; None, and a finding, if it cannot be moved."""
        map_address, *coords = place
        tensor = self._machine.tensor_maps.get(int(map_address[thread.lane]))
        if tensor is None or tensor.rank != len(coords):
            what = "no tensor map" if tensor is None else f"a tensor map of rank {tensor.rank}"
            detail = (
                f"there is {what} at this address; the instruction has {len(coords)} dimensions"
            )
            self._report("tma-tensor-map", detail, thread, map_address)
            return None
        start = tuple(int(coord[thread.lane]) for coord in coords)
        if fault := _coordinate_fault(tensor, start, store):
            self._report("tma-coordinates", fault, thread)
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
            self._report("tma-alignment", detail, thread, shared_address)
            address -= address % SHARED_ALIGNMENT
        offset = address - SHARED_BASE
        order = self._order(tensor, address)
        first, last = offset + int(order.min()) * 16, offset + (int(order.max()) + 1) * 16
        limit = self._machine.shared_limit
        if first < 0 or last > limit:
            detail = f"the box covers shared bytes {first} to {last} of {limit}"
            self._report("shared-out-of-bounds", detail, thread, shared_address)
            return None
        chunks = order + (int(thread.sel.shared_base[thread.lane]) + address) // CHUNK_BYTES
        return _Box(tensor, start, chunks, thread)

    def _report(self, kind: str, detail: str, thread: Thread, address: Array | None = None) -> None:
        self._machine.findings.report_thread(kind, detail, thread, address)

    def _order(self, tensor: TensorMap, address: int) -> NDArray[np.int64]:
        """Where the chunks of a box go, relative to its address."""
        near = address % PATTERN_BYTES
        key = tensor.swizzle, tensor.box_bytes, near
        if key not in self._orders:
            linear = np.arange(near, near + tensor.box_bytes, CHUNK_BYTES)
            self._orders[key] = (swizzle(linear, tensor.swizzle) - near) // CHUNK_BYTES
        return self._orders[key]

    def _read_shared(self, store: _Store) -> None:
        if store.data is None:
            store.data = self._machine.shared.chunks[store.box.chunks].view(np.uint8)

    def _read_tensor(self, box: _Box) -> Array:
        """The chunks of a box; zero where it leaves the tensor."""
        data = np.zeros(box.tensor.box_bytes, np.uint8)
        pieces, offsets, allowed = self._resolve(box, "tensor load")
        if pieces is not None:
            storage = self._machine.global_access.storage
            values = storage.views[pieces.size].take(offsets // pieces.size)
            wide = data.view(values.dtype)
            if allowed is None:
                wide[pieces.places] = values
                self._check_written(box, offsets, pieces.size)
            else:
                wide[pieces.places[allowed]] = values[allowed]
        return data.view(np.complex128)

    def _write_tensor(self, store: _Store) -> None:
        """Put what a store read into its tensor; what lies outside is dropped."""
        pieces, offsets, allowed = self._resolve(store.box, "tensor store")
        if pieces is None or store.data is None:
            return
        memory = self._machine.global_access
        if self._machine.checks:
            memory.check_write(self._access(store.box, pieces, offsets, allowed, "tensor store"))
        target = memory.storage.views[pieces.size]
        values = store.data.view(target.dtype)[pieces.places]
        chosen = slice(None) if allowed is None else allowed
        target[offsets[chosen] // pieces.size] = values[chosen]

    def _resolve(self, box: _Box, what: str) -> tuple[_Pieces | None, NDArray[np.int64], Mask]:
        """The pieces of a box, their offsets in global memory, and which may be accessed."""
        inside = box.inside
        if inside is None:
            return None, np.zeros(0, np.int64), None
        tensor = box.tensor
        strides = (tensor.element_bytes, *tensor.strides)
        first = tensor.address + sum(
            (start + low) * stride
            for start, (low, _), stride in zip(box.start, inside, strides, strict=True)
        )
        key = tensor, inside, first % SECTOR_BYTES
        pieces = self._pieces.get(key)
        if pieces is None:
            pieces = self._pieces[key] = _cut(*key)
        if self._machine.checks:
            moved = pieces.size * len(pieces.offsets)
            self._machine.counters.add_global(
                box.thread.pc, 1, pieces.sectors, -(-moved // SECTOR_BYTES), moved
            )
        memory = self._machine.global_access
        begin = first - GLOBAL_BASE
        if memory.covers(begin, begin + pieces.extent):
            return pieces, begin + pieces.offsets, None
        resolved = memory.resolve(self._access(box, pieces, first + pieces.offsets, None, what))
        return pieces, resolved.where, resolved.mask

    def _check_written(self, box: _Box, offsets: NDArray[np.int64], size: int) -> None:
        allocation = self._machine.global_access.memory.find(int(offsets[0]))
        if not self._machine.checks or allocation is None or allocation.filled:
            return
        if allocation.unwritten(offsets, size).any():
            detail = "tensor load of global memory that nothing was written to"
            self._report("uninitialised-global", detail, box.thread)

    def _access(self, box: _Box, pieces: _Pieces, where: Array, mask: Mask, what: str) -> Access:
        """The access to global memory: by the thread of a box, once for every piece."""
        sel, lane, pc = box.thread
        number = self._machine.lanes.numbers[sel.index][lane]
        repeated = self._machine.lanes.select(np.full(len(where), number))
        return Access(repeated, where, pieces.size, mask, pc, what)

    def _queues_of(self, sel: Selection) -> list[_Queue]:
        numbers = self._machine.lanes.numbers[sel.index]
        if len(self._queues) < len(numbers):
            chosen = set(numbers.tolist())
            return [queue for number, queue in self._queues.items() if number in chosen]
        return [self._queues[n] for n in numbers.tolist() if n in self._queues]


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


def _range(chunks: NDArray[np.int64]) -> tuple[int, int]:
    """The flat bytes from the first chunk to the end of the last."""
    return int(chunks.min()) * CHUNK_BYTES, (int(chunks.max()) + 1) * CHUNK_BYTES


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
    for (low, high), stride, extent in zip(outer, tensor.strides, tensor.box[1:], strict=True):
        steps = np.arange(high - low)[:, None]
        offsets = (steps * stride + offsets).ravel()
        places = ((steps + low) * pitch + places).ravel()
        pitch *= extent
    sectors = len(np.unique((offsets + residue) // SECTOR_BYTES))
    extent = int(offsets[-1]) + size
    return _Pieces(size, offsets, places // size, extent, sectors)
