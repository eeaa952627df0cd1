# SPDX-License-Identifier: Apache-2.0
"""The one statement of what makes a FlashForwardKernelConfig valid on an architecture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flash_attention.arch import Arch
from flash_attention.families.values import Choices, Violation, memory_violations, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig

CHOICES: Choices = {
    "d_head": (64, 128, 192, 256),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "Q_mma_load_K_tiles": (0, 1, 2),
    "K_mma_load_K_tiles": (0, 1, 2),
    "V_mma_load_K_tiles": (0, 1, 2),
}
MMA_ROWS = 16  # rows of one tensor-core product
INT_END = 2**31  # a row stride is a C++ int in the kernel's source


def first_violation(cfg: FlashForwardKernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: FlashForwardKernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(cfg, CHOICES)
    if cfg.B_r < MMA_ROWS * cfg.n_warps:
        yield Violation(
            "warp_rows",
            f"n_warps={cfg.n_warps} leaves B_r={cfg.B_r} with {cfg.B_r // cfg.n_warps} rows a warp;"
            f" a tensor-core product has {MMA_ROWS}: use 8 warps only with B_r=128",
        )
    if cfg.eager_load_blocks and not cfg.async_copy:
        yield Violation(
            "eager_needs_async",
            "eager_load_blocks=True needs copies that fly during the products: "
            "set async_copy=True or eager_load_blocks=False",
        )
    loads = (cfg.Q_mma_load_K_tiles, cfg.K_mma_load_K_tiles, cfg.V_mma_load_K_tiles)
    if cfg.mma_double_buffer_loads and not any(loads):
        yield Violation(
            "double_buffer_needs_tiles",
            "mma_double_buffer_loads=True has nothing to buffer when every operand is read whole: "
            "set one of Q/K/V_mma_load_K_tiles to 1 or 2",
        )
    if cfg.d_head == 192 and cfg.swizzled and cfg.folded_addresses and not cfg.column_panels:
        yield Violation(
            "folded_rows",
            "folded_addresses=True reaches the chunks of a swizzled row by XOR, and rows of 192"
            " elements do not start at a power of two: set column_panels=True",
        )
    stride = cfg.static_row_stride
    if stride % 8 or not (stride == 0 or cfg.d_head <= stride < INT_END):
        yield Violation(
            "static_row_stride",
            f"static_row_stride={stride} elements: use 0 (read from the tensors) or a multiple of 8"
            f" that is at least d_head={cfg.d_head} and less than 2**31",
        )
    yield from memory_violations(
        *(cfg.smem_bytes(), registers_needed(cfg), arch),
        blocks="Q, K and V",
        smaller="use a smaller B_r or B_c",
        fewer="use a smaller B_c, more warps, or read Q in tiles",
    )


def registers_needed(cfg: FlashForwardKernelConfig) -> int:
    """Registers a thread holds at once in the products, by count of the arrays of the kernel.

    ptxas sinks the reads of an operand that is read whole down to their use, so only what one step
    needs is counted for K and V; Q read whole is alive throughout.
    """
    rows, lanes = cfg.warp_rows, 32
    output = rows * cfg.d_head // lanes
    scores = rows * cfg.B_c // lanes
    q = rows * (cfg.d_head if cfg.Q_mma_load_K_tiles == 0 else 16) // (2 * lanes)
    k = cfg.B_c * 16 // (2 * lanes)
    statistics_and_addresses = rows // 4 + 20
    return output + scores + q + min(k, 8) + statistics_and_addresses
