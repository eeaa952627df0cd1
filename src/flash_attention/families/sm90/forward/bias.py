# SPDX-License-Identifier: Apache-2.0
"""A captured tensor that scores read at every query and key: Hopper kernels load it by TMA beside
K, where shared memory has room for it."""

from __future__ import annotations

from flash_attention.call.problem import Problem
from flash_attention.families.config import changed
from flash_attention.families.recipe import MapDescription
from flash_attention.families.sm90.forward.config import HOPPER, HopperForwardKernelConfig
from flash_attention.program.bias import ALIGNMENT, MOST_DIMS

PANEL_KEYS = 64  # of a box, in rows of 128 bytes
ELEMENT_BYTES = 2
PROMOTION = 256  # bytes that one load brings into L2


def has_bias(problem: Problem) -> bool:
    """Whether a tensor map describes a captured tensor for every tile of a problem. Where sequences
    differ in length, its rows and keys are not those of tiles."""
    bias = problem.bias
    return bias is not None and not problem.per_batch and bias.covers(problem.seq_q, problem.seq_k)


def loads_bias(config: HopperForwardKernelConfig, problem: Problem) -> bool:
    """Whether kernels of a config load the captured tensor of a problem by TMA."""
    fits = config.specialised and not config.kv_8_bit and _has_room(config)
    return fits and has_bias(problem)


def block_bytes(queries: int, keys: int) -> int:
    """Return the shared memory of the bias of a block, in whole panels."""
    return queries * -(-keys // PANEL_KEYS) * PANEL_KEYS * ELEMENT_BYTES


def bias_bytes(config: HopperForwardKernelConfig) -> int:
    """Return the shared memory of the bias of every stage of K."""
    return config.stages * block_bytes(config.B_r, config.B_c)


def _has_room(config: HopperForwardKernelConfig) -> bool:
    return config.smem_bytes() + bias_bytes(config) <= HOPPER.max_smem_per_cta


def with_room(config: HopperForwardKernelConfig) -> HopperForwardKernelConfig:
    """Return the config with as much of its keys, its stages and its buffer of O as leave room for
    a bias."""
    for keys in range(config.B_c, 0, -16):
        for stages in range(config.stages, min(config.stages, 2) - 1, -1):
            for own_output in sorted({config.own_output, False}, reverse=True):
                smaller = changed(
                    config,
                    B_c=keys,
                    narrow_keys=min(config.narrow_keys, keys // 2 // 16 * 16),
                    stages=stages,
                    own_output=own_output,
                )
                if smaller is not None and _has_room(smaller):
                    return smaller
    return config


def describe_bias(problem: Problem, rows: int) -> MapDescription:
    """Describe the captured tensor as [outer, inner, queries, keys], with a box of `rows` queries
    and the keys of a panel."""
    assert problem.bias is not None
    assert problem.program is not None
    slot, shape, strides = problem.bias
    missing = MOST_DIMS - len(shape)
    *planes, queries, keys = (*missing * (1,), *shape)
    row_bytes = -(-keys * ELEMENT_BYTES // ALIGNMENT) * ALIGNMENT
    # A dimension of one element may have any stride, and one of stride 0 has one element.
    of_dims = [ELEMENT_BYTES * stride for stride in (*missing * (0,), *strides[:-1])]
    usable = [stride if stride % ALIGNMENT == 0 and stride > 0 else row_bytes for stride in of_dims]
    sizes = [size if stride else 1 for size, stride in zip(planes, of_dims, strict=False)]
    return MapDescription(
        dims=(keys, queries, *reversed(sizes)),
        strides=tuple(reversed(usable)),
        box=(PANEL_KEYS, rows, 1, 1),
        swizzle=PANEL_KEYS * ELEMENT_BYTES,
        dtype=problem.program.tensors[slot].dtype,
        promotion=PROMOTION,
    )
