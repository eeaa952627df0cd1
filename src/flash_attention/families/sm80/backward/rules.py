# SPDX-License-Identifier: Apache-2.0
"""The one statement of what makes a FlashBackwardKernelConfig valid on an architecture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flash_attention.arch import WARP_SIZE, Arch
from flash_attention.families.values import Choices, Violation, memory_violations, wrong_values

if TYPE_CHECKING:
    from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig

CHOICES: Choices = {
    "d_head": (32, 64, 96, 128, 192, 256),
    "B_r": (32, 64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "column_warps": (1, 2),
    "stages": (1, 2),
    "mma_load_tiles": (1, 2, 4),
    "dq_warp_rows": (16, 32),
}
MMA_ROWS = 16  # rows of one tensor-core product
VECTOR_ADDITIONS = (9, 0)  # the compute capability that has them


def first_violation(cfg: FlashBackwardKernelConfig, arch: Arch) -> Violation | None:
    return next(_violations(cfg, arch), None)


def _violations(cfg: FlashBackwardKernelConfig, arch: Arch) -> Iterator[Violation]:
    yield from wrong_values(cfg, CHOICES)
    yield from _warp_violations(cfg)
    if cfg.stages > 1 and not cfg.eager_load_blocks:
        yield Violation(
            "stages_need_eager",
            f"stages={cfg.stages} has a buffer for the next block, which is loaded early: set"
            " eager_load_blocks=True or stages=1",
        )
    if cfg.register_operands and cfg.column_warps > 1:
        yield Violation(
            "registers_need_rows",
            f"register_operands=True keeps P and dS in the warp that computed them, and"
            f" column_warps={cfg.column_warps} warps need them: set column_warps=1 or"
            " register_operands=False",
        )
    if cfg.vector_additions and arch.capability < VECTOR_ADDITIONS:
        yield Violation(
            "vector_additions",
            f"vector_additions=True needs sm_90 or newer, not {arch.name}: set it to False",
        )
    yield from memory_violations(
        *(cfg.smem_bytes(), registers_needed(cfg), arch),
        blocks="K, V, Q, dO, P and dS",
        smaller="use a smaller B_r or B_c, or one stage",
        fewer="use a smaller B_r or B_c, or more warps",
    )


def _warp_violations(cfg: FlashBackwardKernelConfig) -> Iterator[Violation]:
    if cfg.warp_rows < MMA_ROWS:
        yield Violation(
            "warp_rows",
            f"n_warps={cfg.n_warps} with column_warps={cfg.column_warps} leave B_c={cfg.B_c} with"
            f" {cfg.warp_rows} rows a warp; a tensor-core product has {MMA_ROWS}: use fewer warps"
            " or a larger B_c",
        )
    row_warps = cfg.B_r // cfg.dq_warp_rows
    tiles = cfg.d_head // MMA_ROWS
    if row_warps > cfg.n_warps or tiles % (cfg.n_warps // row_warps):
        yield Violation(
            "dq_warps",
            f"dq_warp_rows={cfg.dq_warp_rows} cuts B_r={cfg.B_r} queries and {tiles} tiles of 16"
            f" columns into parts that n_warps={cfg.n_warps} warps do not share evenly: use"
            f" dq_warp_rows={48 - cfg.dq_warp_rows} or another B_r",
        )


def registers_needed(cfg: FlashBackwardKernelConfig) -> int:
    """Registers a thread holds at once, by count of the arrays of the kernel: dK and dV, then
    either S and dP or dQ."""
    sums = 2 * cfg.warp_rows * cfg.d_head // cfg.column_warps
    scores = 2 * cfg.warp_rows * cfg.B_r // cfg.column_warps
    dq = cfg.B_r * cfg.d_head // cfg.n_warps
    fragments_and_addresses = 32
    return (sums + max(scores, dq)) // WARP_SIZE + fragments_and_addresses
