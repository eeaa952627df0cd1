# SPDX-License-Identifier: Apache-2.0
"""Operands of wgmma as a host lays them out in shared memory, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_SWIZZLE_BITS = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class OperandLayout:
    """A `rows` x 16 operand of 16-bit elements; `leading` and `stride` are in bytes.

    `span` is the width of the swizzle. A transposed operand keeps its rows, not k, contiguous.
    """

    span: int
    transposed: bool
    leading: int
    stride: int

    def offset(self, row: Any, k: Any) -> Any:
        """Byte offsets of elements from the start of the operand."""
        if self.span == 0:
            line, column = (k % 8, row % 8) if self.transposed else (row % 8, k % 8)
            base = row // 8 * self.stride + k // 8 * self.leading
            return base + line * 16 + column * 2
        rows_alike = 128 // self.span
        if self.transposed:
            panel, within = np.divmod(row, self.span // 2)
            line, column = k % 8, within * 2
            base = panel * self.leading + k // 8 * self.stride
        else:
            line, column = row % 8, k * 2
            base = row // 8 * self.stride
        chunk = column // 16 ^ line // rows_alike
        return base + line * self.span + chunk * 16 + column % 16

    def place(self, image: Array, values: Array, start: int) -> None:
        """Put 16-bit words [rows, 16] into a byte image at `start`."""
        row, k = np.indices(values.shape)
        image.view(np.uint16)[(start + self.offset(row, k)) // 2] = values

    def descriptor(self, start: int, base_offset: int = 0) -> int:
        """The matrix descriptor of an operand at a shared address or offset."""
        return (
            start >> 4
            | self.leading >> 4 << 16
            | self.stride >> 4 << 32
            | base_offset << 49
            | _SWIZZLE_BITS[self.span] << 62
        )


def spread_layout(span: int, transposed: bool) -> OperandLayout:
    """A layout with room between its parts, so that every stride counts."""
    if span == 0:
        return OperandLayout(0, transposed, leading=144, stride=400)
    return OperandLayout(span, transposed, leading=span * 48, stride=span * 16)
