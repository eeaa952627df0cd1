# SPDX-License-Identifier: Apache-2.0
"""Matrix instructions of a warp: ldmatrix, stmatrix and mma.sync."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.access import Access
from ptx_emulator.machine.arithmetic.numerics import F16_VALUES, elements, to_f32
from ptx_emulator.machine.arithmetic.products import stacked_product
from ptx_emulator.machine.lanes import WARP_SIZE, Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.shared import SharedMemory

ROWS = 8  # of a matrix that ldmatrix and stmatrix move; a row has 8 elements of 16 bits
ROW_BYTES = 16
MMA_M, MMA_N, MMA_K = 16, 8, 16

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]


class MatrixUnit:
    """Tensor cores and the moves that feed them."""

    def __init__(self, launch: Launch, shared: SharedMemory) -> None:
        self._launch = launch
        self._shared = shared

    def ldmatrix(
        self, sel: Selection, addr: NDArray[Any], count: int, trans: bool, pcs: tuple[int, ...]
    ) -> Words:
        """Read `count` 8x8 matrices for every instruction of a run, [run, lanes] of addresses; the
        first 8 * count lanes give the addresses of the rows. Returns [run * count, lanes]."""
        native, shared = self._launch.native, self._shared
        _need_whole_warps(sel, "ldmatrix")
        if native is not None and count * ROWS == WARP_SIZE:
            found = shared.direct_read(sel, addr, ROW_BYTES, None, pcs, True)
            if found is not None:
                words: Words = np.empty((len(pcs) * count, sel.count), np.uint32)
                native.read_matrices(found[0], shared.bytes, trans, words)
                return words
        parts = [self._read(sel, row, count, trans, pc) for row, pc in zip(addr, pcs, strict=True)]
        return np.concatenate(parts)

    def _read(self, sel: Selection, addr: NDArray[Any], count: int, trans: bool, pc: int) -> Words:
        """Those of one instruction."""
        access = self._shared.read(_rows(sel, addr, count, pc, "ldmatrix"), collective=True)
        warps = sel.num_warps
        rows = self._shared.chunks.take(access.where >> 4).reshape(warps, WARP_SIZE)
        rows = np.ascontiguousarray(rows[:, : ROWS * count])
        if trans:
            halves = rows.view(np.uint16).reshape(warps, count, ROWS, ROWS).transpose(1, 0, 3, 2)
            fragments = np.ascontiguousarray(halves).view(np.uint32)
        else:
            words = rows.view(np.uint32).reshape(warps, count, WARP_SIZE)
            fragments = np.ascontiguousarray(words.transpose(1, 0, 2))
        return fragments.reshape(count, sel.count)

    def stmatrix(
        self,
        sel: Selection,
        addr: NDArray[Any],
        count: int,
        trans: bool,
        values: Sequence[Words],
        pc: int,
    ) -> None:
        """Write `count` 8x8 matrices; the inverse of `ldmatrix`."""
        access = self._shared.write(_rows(sel, addr, count, pc, "stmatrix"), collective=True)
        warps = sel.num_warps
        fragments = np.stack(values[:count])
        if trans:
            halves = fragments.view(np.uint16).reshape(count, warps, ROWS, ROWS)
            rows = np.ascontiguousarray(halves.transpose(1, 0, 3, 2))
        else:
            words = fragments.reshape(count, warps, WARP_SIZE).transpose(1, 0, 2)
            rows = np.ascontiguousarray(words)
        chunks = np.zeros((warps, WARP_SIZE), np.complex128)
        chunks[:, : ROWS * count] = rows.reshape(-1).view(np.complex128).reshape(warps, -1)
        chosen = slice(None) if access.mask is None else access.mask
        self._shared.chunks[access.where[chosen] >> 4] = chunks.reshape(-1)[chosen]

    def mma(self, sel: Selection, dtype: str, steps: int, a: Words, b: Words, c: Floats) -> Floats:
        """Chains of m16n8k16 products that share their A operands.

        `a` holds 4 registers a step of k, [registers, lanes]; `b` holds, by output fragment and
        step, 2 registers; `c` holds 4 accumulators a fragment, or one for all. Returns the
        accumulators after.
        """
        _need_whole_warps(sel, "mma")
        warps, fragments = sel.num_warps, len(b) // (2 * steps)
        self._launch.counters.tensor_operations += (
            2 * MMA_M * MMA_N * MMA_K * steps * fragments * warps
        )
        product = stacked_product(*self._widened(warps, dtype, steps, a, b))
        native, lanes = self._launch.native, sel.count
        if native is None:
            by_register = product.reshape(warps, 2, 8, fragments, 4, 2).transpose(3, 1, 5, 0, 2, 4)
            registers: Floats = by_register.reshape(4 * fragments, lanes)
        else:
            registers = np.empty((4 * fragments, lanes), np.float32)
            native.spread(product, fragments, lanes, None, registers)
        return registers + c

    def _widened(
        self, warps: int, dtype: str, steps: int, a: Words, b: Words
    ) -> tuple[Floats, Floats]:
        """The operands of the chains as matrices, of every warp."""
        native, lanes, fragments = self._launch.native, warps * WARP_SIZE, len(b) // (2 * steps)
        left: Floats = np.empty((warps, MMA_M, MMA_K * steps), np.float32)
        right: Floats = np.empty((warps, MMA_K * steps, MMA_N * fragments), np.float32)
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        if native is not None:
            values = F16_VALUES if dtype == "f16" else None
            native.widen_a(a, steps, lanes, values, None, left)
            native.widen_b(b, fragments, steps, lanes, values, right)
            return left, right
        halves = to_f32(a.view(np.uint16), dtype).reshape(steps, 2, 2, warps, 8, 4, 2)
        left.reshape(warps, 2, 8, steps, 2, 4, 2)[:] = halves.transpose(3, 2, 4, 0, 1, 5, 6)
        halves = to_f32(b.view(np.uint16), dtype).reshape(fragments, steps, 2, warps, 8, 4, 2)
        right.reshape(warps, steps, 2, 4, 2, fragments, 8)[:] = halves.transpose(
            3, 1, 2, 5, 6, 0, 4
        )
        return left, right

    def transposed(self, sel: Selection, words: Words) -> Words:
        """movmatrix: the transpose of an 8x8 matrix of 16 bits that the warp holds."""
        _need_whole_warps(sel, "movmatrix")
        halves = np.ascontiguousarray(words).view(np.uint16).reshape(-1, ROWS, ROWS)
        turned: Words = np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32)
        return turned.reshape(-1)

    def mma_at_once(
        self,
        sel: Selection,
        shape: tuple[int, int],
        a_type: str,
        b_type: str,
        a: Sequence[Words],
        b: Sequence[Words],
        c: Sequence[NDArray[Any]],
    ) -> list[NDArray[Any]]:
        """One product of rows x depth, the `shape`, by depth x 8; sums as wide as `c` has them.

        Four lanes hold a row of A, or a column of B, in their registers: first of the one half of
        the rows, then of the other, block after block along the depth.
        """
        _need_whole_warps(sel, "mma")
        warps, (rows, depth) = sel.num_warps, shape
        left, right = elements(np.stack(a), a_type), elements(np.stack(b), b_type)
        width = left.shape[-1]
        blocks = depth // (4 * width)
        left = left.reshape(blocks, -1, warps, 8, 4, width).transpose(2, 1, 3, 0, 4, 5)
        right = right.reshape(blocks, warps, 8, 4, width).transpose(1, 0, 3, 4, 2)
        product = np.matmul(left.reshape(warps, rows, depth), right.reshape(warps, depth, MMA_N))
        self._launch.counters.tensor_operations += 2 * rows * MMA_N * depth * warps
        pairs = product.reshape(warps, rows // 8, 8, 4, 2)
        if c[0].dtype == np.uint32:  # of two 16-bit floats each
            sums = pairs.transpose(1, 0, 2, 3, 4).reshape(2, -1)
            before = np.stack(c).view(np.float16).astype(sums.dtype)
            return list((sums + before).astype(np.float16).view(np.uint32))
        by_register = pairs.transpose(1, 4, 0, 2, 3).reshape(rows // 4, -1)
        return [x.astype(y.dtype) + y for x, y in zip(by_register, c, strict=True)]


def _rows(sel: Selection, addr: NDArray[Any], count: int, pc: int, what: str) -> Access:
    """The access of a matrix move: the first lanes have the addresses of its rows."""
    _need_whole_warps(sel, what)
    mask = None if count * ROWS == WARP_SIZE else sel.lane < count * ROWS
    return Access(sel, addr, ROW_BYTES, mask, pc, what)


def _need_whole_warps(sel: Selection, what: str) -> None:
    if not sel.whole_warps:
        raise EmulatorError(
            f"{what} is executed by part of a warp; all 32 lanes must execute it together"
        )
