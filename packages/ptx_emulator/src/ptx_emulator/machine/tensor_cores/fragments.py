# SPDX-License-Identifier: Apache-2.0
"""The A operand of a warpgroup's product that lies in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.arithmetic.numerics import element_bytes, to_f32

GROUP_WARPS, ROWS = 4, 64
DEPTH_BYTES = 32  # of any product


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
