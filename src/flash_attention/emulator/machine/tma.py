# SPDX-License-Identifier: Apache-2.0
"""Tensor copies between global and shared memory, and the bulk groups that stores belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.machine.lanes import GLOBAL_BASE, SHARED_BASE
from flash_attention.emulator.machine.tensor_map import CHUNK_BYTES, TensorMap, swizzle

if TYPE_CHECKING:
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.machine.machine import Machine

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_] | None
_Bounds = tuple[tuple[int, int], ...]

SHARED_ALIGNMENT = 128
PATTERN_BYTES = 1024
SECTOR_BYTES = 32
POISON = np.full(4, 0x7FFF7FFF, np.uint32).view(np.complex128)[0]


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
    sel: Selection
    lane: int
    pc: int

    @property
    def inside(self) -> tuple[tuple[int, int], ...] | None:
        """Of every dimension, what lies in the tensor, counted from the box; None for nothing."""
        bounds = tuple(
            (max(0, -start), min(extent, dim - start))
            for start, extent, dim in zip(
                self.start, self.tensor.box, self.tensor.dims, strict=True
            )
        )
        return bounds if all(low < high for low, high in bounds) else None


@dataclass
class _Store:
    """A store on its way; `data` is what it read from shared memory, once it has."""

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
        self,
        sel: Selection,
        dst: Array,
        map_address: Array,
        coords: tuple[Array, ...],
        mbarrier: Array,
        mask: Mask,
        pc: int,
    ) -> None:
        """Global to shared: poison now, data when somebody waits for the mbarrier's phase."""
        machine = self._machine
        for lane in sel.executing(mask):
            box = self._box(sel, lane, dst, map_address, coords, pc)
            barrier = machine.mbarriers.find(sel, lane, mbarrier, pc)
            if box is None or barrier is None:
                continue
            data = self._read_tensor(box)
            chunks = machine.shared.chunks

            def land(to: Array = box.chunks, data: Array = data, chunks: Array = chunks) -> None:
                chunks[to] = data

            number = int(machine.lanes.numbers[sel.index][lane])
            agent, epoch = machine.mbarriers.start_transfer(
                barrier, box.tensor.box_bytes, number, pc, land
            )
            begin, end = _range(box.chunks)
            bad = np.zeros(sel.count, bool)
            bad[lane] = True
            machine.shared.engine_write(
                int(sel.cta[lane]), begin, end, int(sel.warp_id[lane]), agent, epoch, sel, bad, pc
            )
            chunks[box.chunks] = POISON

    def store(
        self,
        sel: Selection,
        map_address: Array,
        coords: tuple[Array, ...],
        src: Array,
        mask: Mask,
        pc: int,
    ) -> None:
        """Shared to global: part of the thread's open bulk group."""
        machine = self._machine
        numbers = machine.lanes.numbers[sel.index]
        for lane in sel.executing(mask):
            box = self._box(sel, lane, src, map_address, coords, pc, store=True)
            if box is None:
                continue
            warp_id, warp = int(sel.warp_id[lane]), int(sel.warp[lane])
            self._epochs[warp_id] += 1
            epoch = int(self._epochs[warp_id])
            machine.shared.engine_read(
                box.chunks[None],
                np.array([[warp_id]]),
                np.array([machine.clocks.bulk_agent(warp)]),
                np.array([epoch]),
                sel,
                pc,
            )
            queue = self._queues.setdefault(int(numbers[lane]), _Queue())
            queue.open.append(_Store(box, epoch))

    def prefetch(
        self, sel: Selection, map_address: Array, coords: tuple[Array, ...], mask: Mask, pc: int
    ) -> None:
        """Global to L2: nothing a program can see, but the box must be one that can be moved."""
        for lane in sel.executing(mask):
            tensor = self._tensor(sel, lane, map_address, coords, pc)
            start = tuple(int(coord[lane]) for coord in coords)
            if tensor and (fault := _coordinate_fault(tensor, start, store=False)):
                self._machine.findings.report_lane("tma-coordinates", fault, pc, sel, lane)

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
                seen = clocks.seen[int(box.sel.warp_id[box.lane])]
                agent = clocks.bulk_agent(int(box.sel.warp[box.lane]))
                seen[agent] = max(seen[agent], store.epoch)
                if not read:
                    self._write_tensor(store)
            if not read:
                del queue.groups[:over]

    def report_unfinished(self) -> None:
        """At the end of the kernel: land what is on its way, report what nobody waited for."""
        for transfer in self._machine.mbarriers.unfinished():
            sel = self._machine.lanes.select(np.array([transfer.lane]))
            detail = "the kernel ends while a bulk load nobody waited for is on its way"
            self._machine.findings.report_lane("bulk-load-unwaited", detail, transfer.pc, sel, 0)
        for queue in self._queues.values():
            for store in (store for group in (*queue.groups, queue.open) for store in group):
                if store.data is None:
                    detail = "the thread exits while its bulk store reads shared memory"
                    box = store.box
                    self._machine.findings.report_lane(
                        "bulk-store-unwaited", detail, box.pc, box.sel, box.lane
                    )
                    self._read_shared(store)
                self._write_tensor(store)
        self._queues = {}

    def _tensor(
        self, sel: Selection, lane: int, map_address: Array, coords: tuple[Array, ...], pc: int
    ) -> TensorMap | None:
        """The tensor a map describes; None, and a finding, if there is none of that rank."""
        tensor = self._machine.tensor_maps.get(int(map_address[lane]))
        if tensor is not None and tensor.rank == len(coords):
            return tensor
        what = "no tensor map" if tensor is None else f"a tensor map of rank {tensor.rank}"
        detail = f"there is {what} at this address; the instruction has {len(coords)} dimensions"
        self._machine.findings.report_lane("tma-tensor-map", detail, pc, sel, lane, map_address)
        return None

    def _box(
        self,
        sel: Selection,
        lane: int,
        shared_address: Array,
        map_address: Array,
        coords: tuple[Array, ...],
        pc: int,
        *,
        store: bool = False,
    ) -> _Box | None:
        """The box one lane asks for; None, and a finding, if it cannot be moved."""
        tensor = self._tensor(sel, lane, map_address, coords, pc)
        if tensor is None:
            return None
        address = int(shared_address[lane])
        if address % SHARED_ALIGNMENT:
            detail = f"the shared address of a tensor copy is no multiple of {SHARED_ALIGNMENT}"
            self._machine.findings.report_lane(
                "tma-alignment", detail, pc, sel, lane, shared_address
            )
            address -= address % SHARED_ALIGNMENT
        offset = address - SHARED_BASE
        order = self._order(tensor, address)
        first, last = offset + int(order.min()) * 16, offset + (int(order.max()) + 1) * 16
        limit = self._machine.shared_limit
        if first < 0 or last > limit:
            detail = f"the box covers shared bytes {first} to {last} of {limit}"
            self._machine.findings.report_lane(
                "shared-out-of-bounds", detail, pc, sel, lane, shared_address
            )
            return None
        chunks = order + (int(sel.shared_base[lane]) + address) // CHUNK_BYTES
        start = tuple(int(coord[lane]) for coord in coords)
        if fault := _coordinate_fault(tensor, start, store):
            self._machine.findings.report_lane("tma-coordinates", fault, pc, sel, lane)
            return None
        return _Box(tensor, start, chunks, sel, lane, pc)

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
        pieces, place = self._resolve(box, "tensor load")
        if pieces is not None:
            offsets, allowed = place
            memory = self._machine.global_access.memory
            values = memory.storage.views[pieces.size].take(offsets // pieces.size)
            wide = data.view(values.dtype)
            if allowed is None:
                wide[pieces.places] = values
                self._check_written(box, offsets, pieces.size)
            else:
                wide[pieces.places[allowed]] = values[allowed]
        return data.view(np.complex128)

    def _write_tensor(self, store: _Store) -> None:
        """Put what a store read into its tensor; what lies outside is dropped."""
        box = store.box
        pieces, place = self._resolve(box, "tensor store")
        if pieces is None or store.data is None:
            return
        offsets, allowed = place
        access = self._machine.global_access
        if self._machine.checks:
            access.check_write(self._repeated(box, pieces), offsets, pieces.size, allowed, box.pc)
        target = access.memory.storage.views[pieces.size]
        values = store.data.view(target.dtype)[pieces.places]
        chosen = slice(None) if allowed is None else allowed
        target[offsets[chosen] // pieces.size] = values[chosen]

    def _resolve(
        self, box: _Box, what: str
    ) -> tuple[_Pieces | None, tuple[NDArray[np.int64], Mask]]:
        """The pieces of a box, their offsets in global memory, and which may be accessed."""
        inside = box.inside
        if inside is None:
            return None, (np.zeros(0, np.int64), None)
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
                box.pc, 1, pieces.sectors, -(-moved // SECTOR_BYTES), moved
            )
        access = self._machine.global_access
        begin = first - GLOBAL_BASE
        allocation = access.memory.find(begin)
        end = begin + pieces.extent
        if allocation is not None and allocation.owned is None and end <= allocation.end:
            return pieces, (begin + pieces.offsets, None)
        return pieces, access.resolve(
            self._repeated(box, pieces), first + pieces.offsets, pieces.size, None, box.pc, what
        )

    def _check_written(self, box: _Box, offsets: NDArray[np.int64], size: int) -> None:
        allocation = self._machine.global_access.memory.find(int(offsets[0]))
        if not self._machine.checks or allocation is None or allocation.filled:
            return
        if allocation.unwritten(offsets, size).any():
            detail = "tensor load of global memory that nothing was written to"
            self._machine.findings.report_lane(
                "uninitialised-global", detail, box.pc, box.sel, box.lane
            )

    def _repeated(self, box: _Box, pieces: _Pieces) -> Selection:
        """The lane of a box, once for every piece."""
        number = self._machine.lanes.numbers[box.sel.index][box.lane]
        return self._machine.lanes.select(np.full(len(pieces.offsets), number))

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
