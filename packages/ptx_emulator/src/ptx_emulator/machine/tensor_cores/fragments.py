# SPDX-License-Identifier: Apache-2.0
"""The operands of a warpgroup's products as matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.arithmetic.numerics import element_bytes, to_f32

GROUP_WARPS, ROWS = 4, 64
DEPTH_BYTES = 32  # of any product


class Operand:
    """An operand of a chain of products, [groups, rows, depth of all steps]."""

    def __init__(
        self, groups: int, rows: int, depth: int, steps: int, dtype: str, transposed: bool
    ) -> None:
        self.rows, self.depth, self.dtype, self.transposed = rows, depth, dtype, transposed
        self.values: NDArray[np.float32] = np.empty((groups, rows, depth * steps), np.float32)

    def step(self, at: int) -> NDArray[np.float32]:
        """The part of one step, a view."""
        return self.values[:, :, at * self.depth : (at + 1) * self.depth]

    def widened(self, chunks: NDArray[Any]) -> NDArray[np.float32]:
        """The elements in 16-byte chunks [groups, n] of one step as [groups, rows, depth]."""
        values = to_f32(chunks.view(f"u{element_bytes(self.dtype)}"), self.dtype)
        if self.transposed:
            values = values.reshape(len(chunks), self.rows // 8, self.depth, 8)
            values = values.transpose(0, 1, 3, 2)
        return values.reshape(len(chunks), self.rows, self.depth)


def from_fragments(
    registers: tuple[NDArray[Any], ...], dtype: str, order: NDArray[Any]
) -> NDArray[np.float32]:
    """A of four registers a lane as [groups, 64, depth]; `order` has the warps group by group."""
    size, warps = element_bytes(dtype), len(order)
    in_word, depth = 4 // size, DEPTH_BYTES // size
    fragments = np.empty((warps, 2, 8, 2, 4, in_word), np.float32)
    for index, register in enumerate(registers):
        values = to_f32(np.ascontiguousarray(register).view(f"u{size}"), dtype)
        fragments[:, index & 1, :, index >> 1] = values.reshape(warps, 8, 4, in_word)
    by_warp: NDArray[np.float32] = fragments.reshape(warps, 16, depth)[order]
    return by_warp.reshape(warps // GROUP_WARPS, ROWS, depth)
