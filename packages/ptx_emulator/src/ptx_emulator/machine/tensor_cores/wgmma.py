# SPDX-License-Identifier: Apache-2.0
"""Warpgroup products: operands in shared memory, accumulators as matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Thread, alike
from ptx_emulator.machine.arithmetic.numerics import (
    F16_VALUES,
    element_bytes,
    elements,
)
from ptx_emulator.machine.arithmetic.products import stacked_product
from ptx_emulator.machine.async_copies.tensor_map import CHUNK_BYTES
from ptx_emulator.machine.checks.engine_shadow import Steps
from ptx_emulator.machine.lanes import WARP_SIZE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.shared import SharedMemory
from ptx_emulator.machine.tensor_cores.descriptors import Descriptors, Mistake
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
HALVES = {"f16": F16_VALUES, "bf16": None}  # what native code reads, and the table of values


# Descriptors and instructions of a chain, and the rows of each operand, which may be transposed.
_ChainKey = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, bool], ...]]


class _Chain(NamedTuple):
    """The chunks of the operands of a chain that lie in shared memory, [steps, n] each."""

    chunks: list[NDArray[np.int64]]
    all: Steps


@dataclass(frozen=True)
class _Groups:
    """The warpgroups of a selection: how its warps are ordered into them and back."""

    order: Array
    inverse: Array
    warps: NDArray[np.int64]  # [groups, 4] warp ids
    agents: NDArray[np.int64]  # that read for them
    starts: NDArray[np.int64]  # flat chunk of shared address 0


class Wgmma:
    """The tensor cores of a warpgroup and their asynchronous groups."""

    def __init__(self, launch: Launch, shared: SharedMemory) -> None:
        self._launch = launch
        self._shared = shared
        self._committed = np.zeros(launch.num_warps, np.int32)
        self._descriptors = Descriptors(launch, shared)
        self._chains: dict[_ChainKey, _Chain] = {}  # without a mistake

    def gather(self, sel: Selection, registers: Array) -> Array:
        """Accumulators [registers, lanes] as a matrix a warpgroup, [groups, 64, 2 * registers]."""
        groups = self._groups(sel)
        eights, native = len(registers) // 4, self._launch.native
        if native is not None and registers.dtype == np.float32:
            matrix: Floats = np.empty((len(groups.warps), ROWS, eights * 8), np.float32)
            if native.collect(registers, eights, sel.count, groups.inverse, matrix) >= 0:
                return matrix
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
        eights, native = count // 4, self._launch.native
        if native is not None and matrix.dtype == np.float32 and matrix.flags.c_contiguous:
            registers: Floats = np.empty((count, sel.count), np.float32)
            native.spread(matrix, eights, sel.count, groups.inverse, registers)
            return registers
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
        sign: int = 1,
    ) -> Floats:
        """wgmma.mma_async: A x B times `sign`, plus `matrix` where `scale_d` holds."""
        product = (sel, n, types, ((a, b, pc),), scale_d, trans_a, trans_b)
        return self.multiply_steps(*product, matrix, sign)

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
        sign: int = 1,
    ) -> Floats:
        """A chain of products on one accumulator, of which the first has `scale_d`, at once."""
        groups = self._groups(sel)
        depth = DEPTH_BYTES // element_bytes(types[1])
        left = Operand(len(groups.warps), ROWS, depth, len(steps), types[0], trans_a)
        right = Operand(len(groups.warps), n, depth, len(steps), types[1], trans_b)
        pcs = tuple(pc for _, _, pc in steps)
        in_shared = {right: [b for _, b, _ in steps]}
        places = [a for a, _, _ in steps if not isinstance(a, tuple)]
        if places:
            in_shared[left] = places
        ready = self._read_at_once(in_shared, pcs, sel, groups)
        left_ready = ready if places else self._fill_at_once(left, steps, sel, groups)
        for at, (a, b, pc) in enumerate(() if ready and left_ready else steps):
            if not ready:
                self._read_operand(right, at, b, sel, groups, pc)
            if left_ready:
                continue
            if isinstance(a, tuple):
                left.step(at)[:] = from_fragments(a, types[0], groups.order)
            else:
                self._read_operand(left, at, a, sel, groups, pc)
        operations = 2 * ROWS * n * left.values.shape[-1] * len(groups.warps)
        self._launch.counters.tensor_operations += operations
        product = stacked_product(left.values, right.values.transpose(0, 2, 1))
        if sign < 0:
            product = -product
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
        sign: int = 1,
    ) -> Array:
        """Accumulators [registers, lanes] after: integers, or two 16-bit floats a register."""
        count, lanes = registers.shape
        before = registers.astype(np.float64)
        if registers.dtype == np.uint32:
            pairs = elements(np.ascontiguousarray(registers), "f16")
            before = pairs.transpose(0, 2, 1).reshape(2 * count, lanes)
        product = (sel, n, types, a, b, scale_d, trans_a, trans_b)
        after = self.multiply(*product, self.gather(sel, before), pc, sign)
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
        clocks, warps = self._launch.clocks, sel.warps
        over = self._committed[warps] - pending
        clocks.learn_all(warps, clocks.wgmma_agent(warps // self._launch.num_ctas), over)

    def _fill_at_once(
        self, operand: Operand, steps: Sequence[Step], sel: Selection, groups: _Groups
    ) -> bool:
        """Fill in all steps of A, which lies in registers, by one call, if that can be done."""
        native = self._launch.native
        if native is None or operand.dtype not in HALVES:
            return False
        words = np.array([a for a, _, _ in steps]).reshape(-1, sel.count)
        if words.itemsize != 4:
            return False
        given = HALVES[operand.dtype], groups.inverse, operand.values
        return bool(native.widen_a(words, len(steps), sel.count, *given) >= 0)

    def _read_at_once(
        self,
        given: Mapping[Operand, Sequence[Array]],
        pcs: tuple[int, ...],
        sel: Selection,
        groups: _Groups,
    ) -> bool:
        """Read all steps of the operands that lie in shared memory at once. False, and nothing is
        done, where groups have different descriptors or there may be something to report."""
        native, shared = self._launch.native, self._shared
        descriptors = [step for steps in given.values() for step in steps]
        if (
            native is None
            or not all(operand.dtype in HALVES for operand in given)
            or len(descriptors) != len(given) * len(pcs)
            or not all(map(alike, descriptors))
        ):
            return False
        bits = tuple(step.item(0) for step in descriptors)
        chain = self._chain(bits, pcs, tuple(given), sel)
        if chain is None:
            return False
        starts, epochs = groups.starts, self._committed[groups.warps[:, 0]] + 1
        if not shared.read_operands(chain.all, starts, groups.warps, groups.agents, epochs):
            return False
        for operand, chunks in zip(given, chain.chunks, strict=True):
            to = HALVES[operand.dtype], operand.depth, 0, operand.transposed, operand.values
            native.widen_chunks(chunks, starts, shared.bytes, *to)
        return True

    def _chain(
        self,
        bits: tuple[int, ...],
        pcs: tuple[int, ...],
        operands: tuple[Operand, ...],
        sel: Selection,
    ) -> _Chain | None:
        """The steps of operands; None where something is wrong with a descriptor."""
        shapes = tuple((operand.rows, operand.transposed) for operand in operands)
        known = self._chains.get((bits, pcs, shapes))
        if known is None:
            of_each = [shape for shape in shapes for _ in pcs]
            looks = [
                self._descriptors.look(b, *of, sel) for b, of in zip(bits, of_each, strict=True)
            ]
            if any(look.mistakes for look in looks):
                return None
            found = [look.addresses for look in looks if look.addresses is not None]
            count = len(pcs)
            chunks = [
                np.array(found[first : first + count]) // CHUNK_BYTES
                for first in range(0, len(found), count)
            ]
            known = _Chain(chunks, Steps.of(np.concatenate(chunks, axis=1), pcs))
            self._chains[bits, pcs, shapes] = known
        return known

    def _read_operand(
        self, operand: Operand, at: int, given: Array, sel: Selection, groups: _Groups, pc: int
    ) -> None:
        """Fill in one step of an operand that lies in shared memory."""
        if alike(given):
            self._read_alike(operand, at, int(given[0]), None, sel, groups, pc)
            return
        by_group = given.reshape(-1, WARP_SIZE)[groups.order].reshape(len(groups.warps), -1)
        bits = by_group[:, 0]
        if (by_group != bits[:, None]).any():
            self._report(Mistake("descriptor differs inside a warpgroup"), sel, pc)
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
            operand.step(at)[slice(None) if chosen is None else chosen] = np.nan
            return
        places = slice(None) if chosen is None else chosen
        warps, agents, starts = groups.warps[places], groups.agents[places], groups.starts[places]
        chunks = addresses // CHUNK_BYTES + starts[:, None]
        if self._launch.checks:
            epochs = self._committed[warps[:, 0]] + 1
            self._shared.engine_read(chunks, warps, agents, epochs, sel, pc)
        native, first = self._launch.native, at * operand.depth
        if native is not None and chosen is None and operand.dtype in HALVES:
            given = HALVES[operand.dtype], operand.depth, first, operand.transposed, operand.values
            native.widen_chunks(addresses[None] // CHUNK_BYTES, starts, self._shared.bytes, *given)
        else:
            operand.step(at)[places] = operand.widened(self._shared.chunks.take(chunks))

    def _addresses(
        self, bits: int, rows: int, transposed: bool, sel: Selection, pc: int
    ) -> NDArray[np.int64] | None:
        """Chunk addresses of an operand; None, and a finding, if they leave shared memory."""
        look = self._descriptors.look(bits, rows, transposed, sel)
        for mistake in look.mistakes:
            self._report(mistake, sel, pc)
        return look.addresses

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
        groups = _Groups(order, np.argsort(order), warps, agents, base // CHUNK_BYTES)
        sel.memo["wgmma"] = groups
        return groups

    def _report(self, mistake: Mistake, sel: Selection, pc: int) -> None:
        detail, address, other, kind = mistake
        addresses = None if address is None else np.full(sel.count, address)
        report = self._launch.findings.report_thread
        report(kind, detail, Thread(sel, 0, pc), addresses, other)
