# SPDX-License-Identifier: Apache-2.0
"""Who draws which weights are dropped in a backward kernel."""

from __future__ import annotations

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.families.sm90.backward.bias import bias_bytes, loads_bias
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.forward.config import HOPPER, WARP_ROWS
from flash_attention.families.sm90.forward.drawing import decision_bytes


def draws_ahead(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> bool:
    """Whether warps beside the producer draw, which split kernels do not have."""
    if not problem.dropout_p or config.is_split:
        return False
    held = config.smem_bytes() + (bias_bytes(config) if loads_bias(config, problem) else 0)
    return held + block_decision_bytes(config) <= HOPPER.max_smem_per_cta


def block_decision_bytes(config: HopperBackwardKernelConfig) -> int:
    """Return the shared memory of the decisions on the keys of a tile and a block of queries."""
    return decision_bytes(config.B_c // WARP_ROWS, config.B_r)
