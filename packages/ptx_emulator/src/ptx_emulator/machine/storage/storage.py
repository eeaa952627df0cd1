# SPDX-License-Identifier: Apache-2.0
"""Bytes with views as wide as the accesses, so that a vector access is one gather."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

POISON = np.uint32(0x7FFF7FFF)  # NaN as two fp16, as two bf16 and as one fp32
ZERO = np.uint32(0)
CHUNK = 16
LARGE = 1 << 20  # bytes

UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
    8: np.uint64,
}
WIDE: dict[int, type[np.generic]] = {**UNSIGNED, CHUNK: np.complex128}


def sparse_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros of which a kernel may touch few. For a large array NumPy asks for huge pages, each of
    which is cleared as a whole when it is touched."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if nbytes < LARGE:
        return np.zeros(shape, dtype)
    return np.frombuffer(mmap(-1, nbytes), dtype).reshape(shape)


class Storage:
    """A flat byte array of equal words at first; `chunks` moves 16 bytes as one number."""

    def __init__(self, num_bytes: int, fill: np.uint32 = POISON) -> None:
        self.changes = 0  # stores and atomics so far, without those that changed nothing
        self.bytes: NDArray[np.uint8] = np.zeros(-(-num_bytes // CHUNK) * CHUNK, np.uint8)
        self.views: dict[int, NDArray[Any]] = {
            width: self.bytes.view(wide) for width, wide in WIDE.items()
        }
        self.words: NDArray[np.uint32] = self.views[4]
        self.chunks: NDArray[np.complex128] = self.views[CHUNK]
        if fill:
            self.words[:] = fill

    def gather(self, offsets: NDArray[np.int64], size: int, count: int) -> tuple[NDArray[Any], ...]:
        """`count` unsigned values of `size` bytes at every offset."""
        if count == 1:
            return (self.views[size].take(offsets // size),)
        wide = self.gather_wide(offsets, size * count)
        return tuple(wide.view(UNSIGNED[size]).reshape(-1, count).T.copy())

    def gather_wide(self, offsets: NDArray[np.int64], nbytes: int) -> NDArray[Any]:
        """The `nbytes` at every offset, as numbers of the widest kind."""
        if nbytes > CHUNK:
            first = offsets // CHUNK
            return self.chunks.take(first[:, None] + np.arange(nbytes // CHUNK))
        return self.views[nbytes].take(offsets // nbytes)

    def scatter(
        self,
        offsets: NDArray[np.int64],
        size: int,
        values: Sequence[NDArray[Any]],
        allowed: NDArray[np.bool_] | None,
    ) -> None:
        """Put the values, of `size` bytes each, behind one another at every allowed offset."""
        self.changes += 1
        if allowed is not None:
            offsets = offsets[allowed]
            values = [value[allowed] for value in values]
        if len(values) == 1:
            self.views[size][offsets // size] = values[0]
            return
        nbytes = size * len(values)
        joined = np.empty((len(offsets), len(values)), UNSIGNED[size])
        for column, value in enumerate(values):
            joined[:, column] = value
        if nbytes > CHUNK:
            places = (offsets // CHUNK)[:, None] + np.arange(nbytes // CHUNK)
            self.chunks[places] = joined.view(np.complex128)
        else:
            self.views[nbytes][offsets // nbytes] = joined.view(WIDE[nbytes])[:, 0]

    def poison(self, offsets: NDArray[np.int64], nbytes: int) -> None:
        """Overwrite `nbytes`, 4 to 16 of them, at every offset."""
        self.views[nbytes][offsets // nbytes] = POISONED[nbytes]


POISONED = {width: np.full(4, POISON, np.uint32).view(WIDE[width])[0] for width in (4, 8, CHUNK)}
