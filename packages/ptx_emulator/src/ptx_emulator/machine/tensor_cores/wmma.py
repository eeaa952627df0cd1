# SPDX-License-Identifier: Apache-2.0
"""wmma: matrices that a warp loads, multiplies and stores as a whole.

PTX leaves open which lane holds which element. Here the elements of a matrix, row by row, are dealt
out to the lanes in equal runs; where a lane has more room than that, its run is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.arithmetic.numerics import elements
from ptx_emulator.machine.lanes import WARP_SIZE, Selection
from ptx_emulator.machine.launch.launch import Launch

Array = NDArray[Any]
Shape = tuple[int, int]


class Wmma:
    """Tensor cores, as the first generation of them is programmed."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def load(
        self,
        s: Selection,
        memory: Any,
        address: Array,
        stride: Array,
        shape: Shape,
        by_rows: bool,
        size: int,
        registers: int,
        pc: int,
    ) -> list[Array]:
        """A matrix of elements of `size` bytes; `stride` is from a row, or column, to the next."""
        places = _places(s, address, stride, shape, by_rows, size)
        run = [memory.load(s, place, size, 1, None, pc)[0] for place in places]
        word = max(size, 4)
        count = registers * word // size
        elements = np.stack([run[index % len(run)] for index in range(count)], axis=1)
        return list(elements.view(f"u{word}").T.copy())

    def store(
        self,
        s: Selection,
        memory: Any,
        address: Array,
        stride: Array,
        shape: Shape,
        by_rows: bool,
        size: int,
        values: Sequence[Array],
        pc: int,
    ) -> None:
        places = _places(s, address, stride, shape, by_rows, size)
        words = np.stack(values, axis=1)
        run = words.view(f"u{size}")
        for index, place in enumerate(places):
            memory.store(s, place, size, (np.ascontiguousarray(run[:, index]),), None, pc)

    def multiply(
        self,
        s: Selection,
        shape: tuple[int, int, int],
        dtype: str,
        a: Sequence[Array],
        b: Sequence[Array],
        c: Sequence[Array],
    ) -> list[Array]:
        """The accumulators after; one in a register each, or two f16 in one."""
        m, n, k = shape
        warps = s.num_warps
        product = np.matmul(_matrix(a, dtype, warps, (m, k)), _matrix(b, dtype, warps, (k, n)))
        self._launch.counters.tensor_operations += 2 * m * n * k * warps
        sums = product.reshape(s.count, -1)
        if c[0].dtype != np.uint32:
            return list((sums.astype(c[0].dtype) + np.stack(c, axis=1)).T.copy())
        before = np.stack(c, axis=1).view(np.float16).astype(np.float32)
        return list((sums + before).astype(np.float16).view(np.uint32).T.copy())


def _places(
    s: Selection, address: Array, stride: Array, shape: Shape, by_rows: bool, size: int
) -> list[Array]:
    """The addresses of every lane's run of elements."""
    if not s.whole_warps:
        raise EmulatorError("wmma is executed by part of a warp; all 32 lanes must execute it")
    rows, columns = shape
    run = rows * columns // WARP_SIZE
    found = []
    for index in range(run):
        row, column = np.divmod(s.lane * run + index, columns)
        major, minor = (row, column) if by_rows else (column, row)
        offset = (major * stride.astype(np.int64) + minor) * size
        found.append((address.astype(np.int64) + offset).astype(address.dtype))
    return found


def _matrix(registers: Sequence[Array], dtype: str, warps: int, shape: Shape) -> Array:
    rows, columns = shape
    run = rows * columns // WARP_SIZE
    values: Array = elements(np.stack(registers, axis=1), dtype)
    return values.reshape(warps * WARP_SIZE, -1)[:, :run].reshape(warps, rows, columns)
