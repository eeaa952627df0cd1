# SPDX-License-Identifier: Apache-2.0
"""The rungs of the sm_80 backward kernels: a plain one, and one idea after the other."""

from __future__ import annotations

from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig

BASE_IDEA = (
    "five products on the tensor cores; P and dS go through shared memory, dQ is added in fp32"
)

STEPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("swizzle", "XOR the 16-byte chunks of a row: no bank conflicts", {"swizzled": True}),
    (
        "folded addresses",
        "one address per lane; the swizzle of every access is an XOR with a constant",
        {"folded_addresses": True},
    ),
    (
        "P and dS in registers",
        "the transposed scores have the lane map of the next product's left operand",
        {"register_operands": True},
    ),
    (
        "eager Q/dO loads",
        "the next Q and dO are copied during the product for dQ, which does not read them",
        {"eager_load_blocks": True},
    ),
    (
        "two buffers",
        "two stages of Q and dO: the next block is copied during all five products",
        {"stages": 2},
    ),
    (
        "double-buffered reads",
        "the next fragments are read before the current ones are multiplied",
        {"mma_double_buffer_loads": True},
    ),
    (
        "taller dQ tiles",
        "32 rows per warp in the product for dQ: every fragment of K feeds two products",
        {"dq_warp_rows": 32},
    ),
    (
        "staged store",
        "dK and dV are stored through swizzled shared memory in 16-byte chunks",
        {"stage_output": True},
    ),
    ("cache hints", "loads fetch whole L2 lines and keep nothing in L1", {"cache_hints": True}),
)
"""The name and the idea of each rung, and the one field that changes."""


def base(dtype: DType, d_head: int) -> FlashBackwardKernelConfig:
    """The config of the first rung."""
    return FlashBackwardKernelConfig(dtype, d_head, B_r=64, B_c=128, n_warps=8)
