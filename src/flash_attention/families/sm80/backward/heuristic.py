# SPDX-License-Identifier: Apache-2.0
"""Which sm_80 backward kernel runs a problem that nobody measured."""

from __future__ import annotations

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.families.config import changed
from flash_attention.families.sm80.backward.config import (
    D_HEADS,
    VECTOR_ADDITIONS,
    FlashBackwardKernelConfig,
)
from flash_attention.families.values import smallest_holding

SWITCHES = "swizzled+eager+folded+staged"
Tile = tuple[tuple[int, int, int], str]
TILES: dict[int, tuple[Tile, ...]] = {
    32: (((32, 128, 4), "registers+stages_2"),),
    64: (((32, 128, 4), "registers+stages_2"),),
    96: (((64, 128, 8), "columns_2+stages_2"), ((64, 64, 4), "columns_2")),
    128: (
        ((64, 128, 8), "columns_2+stages_2+dq_32"),
        ((64, 64, 4), "buffer+columns_2+dq_32"),
    ),
    192: (((64, 64, 8), "columns_2+stages_2"), ((32, 64, 8), "columns_2")),
    256: (
        ((64, 64, 8), "columns_2+stages_2+dq_32"),
        ((64, 64, 8), "columns_2+dq_32"),
        ((32, 32, 4), "columns_2"),
    ),
}
"""(B_r, B_c, n_warps) and words for each head dimension. The first that has room is taken."""


def heuristic(problem: Problem, arch: Arch) -> FlashBackwardKernelConfig | str:
    """The largest tile that has room in shared memory."""
    d_head = smallest_holding(D_HEADS, problem.d_head, problem.d_v)
    if not d_head:
        return f"sm_80 backward kernels have head dimensions up to {max(D_HEADS)}"
    dtype = DType.from_string(str(problem.dtype)).name
    vectors = arch.capability >= VECTOR_ADDITIONS
    for tile, words in TILES[d_head]:
        config = FlashBackwardKernelConfig.from_words(
            [dtype, *map(str, (d_head, *tile))], f"{SWITCHES}+{words}".split("+")
        )
        config = changed(config, vector_additions=vectors) or config
        if config.broken_rule(arch) is None:
            return config
    return f"no tile of sm_80 backward kernels has room in the shared memory of {arch.name}"
