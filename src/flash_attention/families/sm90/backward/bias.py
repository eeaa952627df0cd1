# SPDX-License-Identifier: Apache-2.0
"""A captured tensor that scores read at every query and key: Hopper backward kernels load it by TMA
beside Q, where shared memory has room for it."""

from __future__ import annotations

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.families.config import changed
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.families.sm90.forward.bias import block_bytes, has_bias
from flash_attention.families.sm90.forward.config import HOPPER
from flash_attention.program.bias import only_scores_read_bias


def bias_bytes(config: HopperBackwardKernelConfig) -> int:
    """Return the shared memory of the bias of a block."""
    return block_bytes(config.B_r, config.B_c)


def loads_bias(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> bool:
    """Whether kernels of a config load the captured tensor of a problem by TMA."""
    if config.query_gradient is QueryGradient.WORKSPACE or config.is_split:
        return False
    return _has_room(config) and may_load_bias(problem)


def may_load_bias(problem: BackwardProblem) -> bool:
    """Whether kernels can load the captured tensor of a problem."""
    program = problem.program
    return program is not None and has_bias(problem) and only_scores_read_bias(program)


def with_room(config: HopperBackwardKernelConfig) -> HopperBackwardKernelConfig:
    """Return the config with as many stages of dS as leave room for a bias."""
    for stages in range(config.ds_stages, 0, -1):
        smaller = changed(config, ds_stages=stages)
        if smaller is not None and _has_room(smaller):
            return smaller
    return config


def _has_room(config: HopperBackwardKernelConfig) -> bool:
    return config.smem_bytes() + bias_bytes(config) <= HOPPER.max_smem_per_cta
