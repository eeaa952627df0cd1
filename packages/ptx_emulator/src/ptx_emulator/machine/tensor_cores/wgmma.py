# SPDX-License-Identifier: Apache-2.0
"""Warpgroup products: matrix descriptors, operands in shared memory, accumulators as matrices."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Thread
from ptx_emulator.machine.arithmetic.numerics import (
    F16_VALUES,
    element_bytes,
    elements,
)
from ptx_emulator.machine.arithmetic.products import stacked_product
from ptx_emulator.machine.async_copies.tensor_map import CHUNK_BYTES, swizzle
from ptx_emulator.machine.lanes import SHARED_BASE, WARP_SIZE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.shared import SharedMemory
from ptx_emulator.machine.tensor_cores.fragments import (
    DEPTH_BYTES,
    GROUP_WARPS,
    ROWS,
    Operand,
    from_fragments,
)

Array = NDArray[Any]
Floats = NDArray[np.float32]
Step = tuple[tuple[Array, ...] | Array, Array, int]  # registers or descriptors of A, B; the place

PARTIAL = "wgmma is executed by part of a warpgroup; all 128 threads must execute it together"
DEPTH = 16  # of 16-bit elements
MOST_CHUNKS = 1 << 18  # whose places are remembered, about
PATTERN_BYTES = 1024  # the longest period of a swizzle
_SPAN = {0: 0, 1: 128, 2: 64, 3: 32}
_RESERVED = 0x3FF1C000C000C000  # bits that belong to no field


@dataclass(frozen=True)
class Descriptor:
    """Where a wgmma operand lies in shared memory; offsets and addresses are in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    span: int

    @classmethod
    def decode(cls, bits: int) -> Descriptor:
        return cls(
            start=(bits & 0x3FFF) << 4,
            leading=(bits >> 16 & 0x3FFF) << 4,
            stride=(bits >> 32 & 0x3FFF) << 4,
            base_offset=bits >> 49 & 7,
            span=_SPAN[bits >> 62 & 3],
        )

    @property
    def pattern_row(self) -> int:
        """Row of the swizzle pattern the operand starts in; hardware takes it to be the first."""
        return ((self.start >> 7) - self.base_offset) & (max(self.span, 16) // CHUNK_BYTES - 1)

    def chunks(self, rows: int, transposed: bool) -> NDArray[np.int64]:
        """Shared addresses of the 16-byte chunks of an operand that is 32 bytes deep.

        K-major: [rows][2], a chunk holding half the steps of k. Transposed (MN-major), of 16-bit
        elements: [rows / 8][16], a chunk holding 8 rows.
        """
        if transposed:
            row = np.arange(0, rows, 8)[:, None]
            k = np.arange(DEPTH)[None]
            if self.span:
                wide = self.span // 2
                offset = row % wide * 2 + row // wide * self.leading
                offset = offset + k % 8 * self.span + k // 8 * self.stride
            else:
                offset = row // 8 * self.stride + k % 8 * CHUNK_BYTES + k // 8 * self.leading
        else:
            row = np.arange(rows)[:, None]
            half = np.arange(2)[None]
            pitch, next_half = (self.span, CHUNK_BYTES) if self.span else (16, self.leading)
            offset = row % 8 * pitch + row // 8 * self.stride + half * next_half
        return swizzle(self.start + offset, self.span, self.base_offset).ravel()


@dataclass(frozen=True)
class _Groups:
    """The warpgroups of a selection: how its warps are ordered into them and back."""

    order: Array
    inverse: Array
    warps: NDArray[np.int64]  # [groups, 4] warp ids
    agents: NDArray[np.int64]  # that read for them
    shared_base: NDArray[np.int64]  # flat byte offset of shared address 0


class Wgmma:
    """The tensor cores of a warpgroup and their asynchronous groups."""

    def __init__(self, launch: Launch, shared: SharedMemory) -> None:
        self._launch = launch
        self._shared = shared
        self._committed = np.zeros(launch.num_warps, np.int32)
        self._layouts: dict[tuple[Descriptor, int, bool], NDArray[np.int64]] = {}
        self._chunks: dict[tuple[int, int, bool, Hashable], NDArray[np.int64]] = {}
        self._operands: dict[tuple[int, int, bool], NDArray[np.int64]] = {}  # without a mistake

    def gather(self, sel: Selection, registers: Array) -> Array:
        """Accumulators [registers, lanes] as a matrix a warpgroup, [groups, 64, 2 * registers]."""
        groups = self._groups(sel)
        eights = len(registers) // 4
        values = np.ascontiguousarray(registers).reshape(eights, 2, 2, sel.num_warps, 8, 4)
        values = values[:, :, :, groups.order].reshape(
            eights, 2, 2, len(groups.warps), GROUP_WARPS, 8, 4
        )
        return np.ascontiguousarray(values.transpose(3, 4, 1, 5, 0, 6, 2)).reshape(
            len(groups.warps), ROWS, eights * 8
        )

    def scatter(self, sel: Selection, matrix: Floats, count: int) -> Floats:
        """The `count` accumulator registers that hold a matrix of `gather`, [count, lanes]."""
        groups = self._groups(sel)
        eights = count // 4
        values = matrix.reshape(len(groups.warps), GROUP_WARPS, 2, 8, eights, 4, 2)
        values = values.transpose(4, 2, 6, 0, 1, 3, 5).reshape(count, sel.num_warps, WARP_SIZE)
        return values[:, groups.inverse].reshape(count, sel.count)

    def multiply(
        self,
        sel: Selection,
        n: int,
        types: tuple[str, str],
        a: tuple[Array, ...] | Array,
        b: Array,
        scale_d: bool | Array,
        trans_a: bool,
        trans_b: bool,
        matrix: Floats,
        pc: int,
    ) -> Floats:
        """wgmma.mma_async: A x B, plus `matrix` where `scale_d` holds."""
        return self.multiply_steps(sel, n, types, ((a, b, pc),), scale_d, trans_a, trans_b, matrix)

    def multiply_steps(
        self,
        sel: Selection,
        n: int,
        types: tuple[str, str],
        steps: tuple[Step, ...],
        scale_d: bool | Array,
        trans_a: bool,
        trans_b: bool,
        matrix: Floats,
    ) -> Floats:
        """A chain of products on one accumulator, of which the first has `scale_d`, at once."""
        groups = self._groups(sel)
        depth = DEPTH_BYTES // element_bytes(types[1])
        left = Operand(len(groups.warps), ROWS, depth, len(steps), types[0], trans_a)
        right = Operand(len(groups.warps), n, depth, len(steps), types[1], trans_b)
        for at, (a, b, pc) in enumerate(steps):
            self._read_operand(right, at, b, sel, groups, pc)
            if isinstance(a, tuple):
                left.step(at)[:] = from_fragments(a, types[0], groups.order)
            else:
                self._read_operand(left, at, a, sel, groups, pc)
        operations = 2 * ROWS * n * left.values.shape[-1] * len(groups.warps)
        self._launch.counters.tensor_operations += operations
        product = stacked_product(left.values, right.values.transpose(0, 2, 1))
        if isinstance(scale_d, (bool, np.bool_)):
            return product + matrix if scale_d else product
        keep = scale_d.reshape(-1, WARP_SIZE)[groups.order[::GROUP_WARPS], 0]
        if keep.all():
            return product + matrix
        return product + np.where(keep[:, None, None], matrix, np.float32(0))

    def multiply_at_once(
        self,
        sel: Selection,
        n: int,
        types: tuple[str, str],
        a: tuple[Array, ...] | Array,
        b: Array,
        scale_d: bool | Array,
        trans_a: bool,
        trans_b: bool,
        registers: Array,
        pc: int,
    ) -> Array:
        """Accumulators [registers, lanes] after: integers, or two 16-bit floats a register."""
        count, lanes = registers.shape
        before = registers.astype(np.float64)
        if registers.dtype == np.uint32:
            pairs = elements(np.ascontiguousarray(registers), "f16")
            before = pairs.transpose(0, 2, 1).reshape(2 * count, lanes)
        product = (sel, n, types, a, b, scale_d, trans_a, trans_b)
        after = self.multiply(*product, self.gather(sel, before), pc)
        sums = self.scatter(sel, after, len(before))
        if registers.dtype == np.int32:
            return sums.astype(np.int64).astype(np.int32)
        halves = sums.astype(np.float16).reshape(count, 2, lanes).transpose(0, 2, 1)
        words: Array = np.ascontiguousarray(halves).view(np.uint32).reshape(count, lanes)
        return words

    def commit(self, sel: Selection) -> None:
        self._committed[sel.warps] += 1

    def wait(self, sel: Selection, pending: int) -> None:
        """wgmma.wait_group: all but the newest `pending` groups have read their operands, as far as
        the waiting warps' parts of the products go."""
        clocks = self._launch.clocks
        for warp_id in sel.warps.tolist():
            warp = warp_id // self._launch.num_ctas
            over = int(self._committed[warp_id]) - pending
            clocks.learn(warp_id, clocks.wgmma_agent(warp), over, alone=False)

    def _read_operand(
        self, operand: Operand, at: int, given: Array, sel: Selection, groups: _Groups, pc: int
    ) -> None:
        """Fill in one step of an operand that lies in shared memory."""
        if (given == given[0]).all():
            self._read_alike(operand, at, int(given[0]), None, sel, groups, pc)
            return
        by_group = given.reshape(-1, WARP_SIZE)[groups.order].reshape(len(groups.warps), -1)
        bits = by_group[:, 0]
        if (by_group != bits[:, None]).any():
            self._report("wgmma-descriptor", "descriptor differs inside a warpgroup", sel, pc)
        for value in np.unique(bits):
            chosen = np.flatnonzero(bits == value)
            self._read_alike(operand, at, int(value), chosen, sel, groups, pc)

    def _read_alike(
        self,
        operand: Operand,
        at: int,
        bits: int,
        chosen: Array | None,
        sel: Selection,
        groups: _Groups,
        pc: int,
    ) -> None:
        """The step of the chosen groups, or of all, which have one descriptor; NaN if it leaves
        shared memory."""
        addresses = self._addresses(bits, operand.rows, operand.transposed, sel, pc)
        if addresses is None:
            operand.step(at)[... if chosen is None else chosen] = np.nan
            return
        warps, agents = groups.warps, groups.agents
        if chosen is None:
            chunks = self._chunks_of_all(bits, operand, addresses, sel, groups)
        else:
            chunks = (addresses[None, :] + groups.shared_base[chosen][:, None]) >> 4
            warps, agents = warps[chosen], agents[chosen]
        if self._launch.checks:
            epochs = self._committed[warps[:, 0]] + 1
            self._shared.engine_read(chunks, warps, agents, epochs, sel, pc)
        native, shared = self._launch.native, self._shared
        if native is not None and chosen is None and operand.dtype in ("f16", "bf16"):
            table = F16_VALUES if operand.dtype == "f16" else None
            given = table, operand.depth, at, operand.transposed, operand.values
            if native.widen_chunks(chunks, shared.bytes, *given) >= 0:
                return
        values = operand.widened(shared.chunks.take(chunks))
        operand.step(at)[... if chosen is None else chosen] = values

    def _chunks_of_all(
        self, bits: int, operand: Operand, addresses: Array, sel: Selection, groups: _Groups
    ) -> NDArray[np.int64]:
        """The flat chunks [groups, n] of an operand whose descriptor all groups have."""
        key = bits, operand.rows, operand.transposed, sel.key
        known = self._chunks.get(key)
        if known is None:
            known = (addresses[None, :] + groups.shared_base[:, None]) >> 4
            if sel.key is not None and known.size * len(self._chunks) < MOST_CHUNKS:
                self._chunks[key] = known
        return known

    def _addresses(
        self, bits: int, rows: int, transposed: bool, sel: Selection, pc: int
    ) -> NDArray[np.int64] | None:
        """Chunk addresses of an operand; None, and a finding, if they leave shared memory."""
        known = self._operands.get((bits, rows, transposed))
        if known is not None:
            return known
        reports = self._launch.findings.reports
        addresses = self._inspected(bits, rows, transposed, sel, pc)
        if addresses is not None and self._launch.findings.reports == reports:
            self._operands[bits, rows, transposed] = addresses
        return addresses

    def _inspected(
        self, bits: int, rows: int, transposed: bool, sel: Selection, pc: int
    ) -> NDArray[np.int64] | None:
        """The addresses, with a look at all that may be wrong with them."""
        descriptor = Descriptor.decode(bits)
        if bits & _RESERVED:
            detail = f"descriptor {bits:#x} has reserved bits set: {bits & _RESERVED:#x}"
            self._report("wgmma-descriptor", detail, sel, pc)
        if descriptor.pattern_row:
            detail = (
                f"descriptor {bits:#x} starts at shared address {descriptor.start:#x}, row "
                f"{descriptor.pattern_row} of the {descriptor.span}-byte swizzle pattern; the base "
                f"offset must be {descriptor.start >> 7 & 7} or the operand aligned to "
                f"{descriptor.span * 8} bytes"
            )
            self._report("wgmma-descriptor", detail, sel, pc)
        if not transposed and rows > 8 and 0 < descriptor.stride < 8 * descriptor.span:
            detail = f"descriptor {bits:#x} has a stride of {descriptor.stride} bytes, and 8 rows"
            detail += f" of its {descriptor.span}-byte swizzle take {8 * descriptor.span}"
            self._report("wgmma-descriptor", detail, sel, pc)
        whole = descriptor.start - descriptor.start % PATTERN_BYTES
        near = replace(descriptor, start=descriptor.start - whole)
        key = near, rows, transposed
        if key not in self._layouts:
            self._layouts[key] = near.chunks(rows, transposed)
        addresses = self._layouts[key] + whole
        first, last = int(addresses.min()), int(addresses.max()) + CHUNK_BYTES
        limit = self._launch.shared_limit
        if first < SHARED_BASE or last > SHARED_BASE + limit:
            detail = (
                f"wgmma operand covers shared bytes {first - SHARED_BASE} to {last - SHARED_BASE} "
                f"of {limit}"
            )
            self._report("shared-out-of-bounds", detail, sel, pc, first)
            return None
        if self._launch.checks:
            self._compare(bits, descriptor, addresses, transposed, sel, pc)
        return addresses

    def _compare(
        self,
        bits: int,
        descriptor: Descriptor,
        addresses: NDArray[np.int64],
        transposed: bool,
        sel: Selection,
        pc: int,
    ) -> None:
        """Compare a descriptor with the boxes that lie there now, if tensor copies brought them."""
        for address in (int(addresses[0]), int(addresses[-1])):
            load = self._shared.load_of((address + int(sel.shared_base[0])) // CHUNK_BYTES)
            layouts = self._shared.layouts.get(load, set()) if load is not None else set()
            if len(layouts) != 1:
                continue
            ((span, row),) = layouts
            detail = f"descriptor {bits:#x} has"
            if span != descriptor.span:
                detail += f" {_swizzle_name(descriptor.span)}, and TMA wrote the tile with"
                detail += f" {_swizzle_name(span)}"
            elif span == 0 and row != CHUNK_BYTES and not transposed:
                detail += f" no swizzle, for rows of 16 bytes; TMA wrote rows of {row} bytes"
            elif span and transposed and descriptor.stride % (8 * span):
                detail += f" a stride of {descriptor.stride} bytes, and TMA wrote groups of 8 rows"
                detail += f" {8 * span} bytes apart"
            else:
                continue
            where, thread = np.full(sel.count, address), Thread(sel, 0, pc)
            report = self._launch.findings.report_thread
            report("wgmma-descriptor", detail, thread, where, load)
            return

    def _groups(self, sel: Selection) -> _Groups:
        memo = sel.memo.get("wgmma")
        if isinstance(memo, _Groups):
            return memo
        num_ctas = self._launch.num_ctas
        warp, cta = sel.warps // num_ctas, sel.warps % num_ctas
        order = np.lexsort((warp, cta, warp // GROUP_WARPS))
        incomplete = EmulatorError(PARTIAL)
        if not sel.whole_warps or sel.num_warps % GROUP_WARPS:
            raise incomplete
        warps = sel.warps[order].reshape(-1, GROUP_WARPS)
        members = warps // num_ctas
        if (members % GROUP_WARPS != np.arange(GROUP_WARPS)).any() or (
            warps % num_ctas != warps[:, :1] % num_ctas
        ).any():
            raise incomplete
        lanes = self._launch.lanes
        first = warps[:, 0] * WARP_SIZE
        base = lanes.shared_base(lanes.cta[first], lanes.rank[first])
        agents = self._launch.clocks.wgmma_agent(members[:, 0])
        groups = _Groups(order, np.argsort(order), warps, agents, base)
        sel.memo["wgmma"] = groups
        return groups

    def _report(
        self, kind: str, detail: str, sel: Selection, pc: int, address: int | None = None
    ) -> None:
        addresses = None if address is None else np.full(sel.count, address)
        self._launch.findings.report_thread(kind, detail, Thread(sel, 0, pc), addresses)


def _swizzle_name(span: int) -> str:
    return f"a {span}-byte swizzle" if span else "no swizzle"
