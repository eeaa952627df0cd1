# SPDX-License-Identifier: Apache-2.0
"""Who draws which weights are dropped: warps beside the producer, ahead of the warps that compute,
or these themselves."""

from __future__ import annotations

from flash_attention.arch import WARP_SIZE
from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.bias import bias_bytes, loads_bias
from flash_attention.families.sm90.forward.config import (
    HOPPER,
    WARPGROUP_THREADS,
    HopperForwardKernelConfig,
)

WORD_BYTES = 4  # of a lane, with its decisions on WORD_COLUMNS
WORD_COLUMNS = 64
BARRIERS_BYTES = 16  # two mbarriers


def decision_bytes(warps: int, columns: int) -> int:
    """Return the shared memory of the decisions on the scores of a block, which warps read."""
    words = 1 if columns <= WORD_COLUMNS else -(-columns // (2 * WORD_COLUMNS)) * 2
    barriers = warps * WARP_SIZE // WARPGROUP_THREADS * BARRIERS_BYTES
    return warps * WARP_SIZE * words * WORD_BYTES + barriers


def block_decision_bytes(config: HopperForwardKernelConfig) -> int:
    """Return the shared memory of the decisions on a block of a forward kernel."""
    return decision_bytes(config.computing_warps, config.B_c)


def draws_ahead(config: HopperForwardKernelConfig, problem: Problem) -> bool:
    """Whether warps beside the producer draw: if there is a producer, and room for what they
    draw."""
    if not problem.dropout_p or not config.specialised:
        return False
    held = config.smem_bytes() + (bias_bytes(config) if loads_bias(config, problem) else 0)
    return held + block_decision_bytes(config) <= HOPPER.max_smem_per_cta
