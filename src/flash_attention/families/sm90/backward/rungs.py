# SPDX-License-Identifier: Apache-2.0
"""The ladder of the Hopper backward kernels, from a plain kernel to the fastest one."""

from __future__ import annotations

from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import (
    GROUP_HEADS,
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)

Step = tuple[str, str, dict[str, Any]]
"""The name, the idea, and the one changed field with its value."""

BASE_IDEA = (
    "a CTA keeps 128 keys and visits all queries: P and dS are transposed, so that the accumulators"
    " of one product are the operand of the next"
)
ROUNDED_P: Step = (
    "16-bit P",
    "dS is computed from the P that the product reads, and no register holds P twice",
    {"derivative": Derivative.ROUNDED},
)
IN_PLACE: Step = (
    "arithmetic in place",
    "exponentials and dS are computed in the accumulators, under dK and dV",
    {"schedule": Schedule.IN_PLACE},
)
PAIRS: Step = (
    "pairs of dS",
    "dS is a product of 16-bit pairs: half the multiplications and conversions",
    {"derivative": Derivative.PAIRS},
)
STEPS: tuple[Step, ...] = (
    ("two stages", "the next Q and dO arrive while this block is multiplied", {"stages": 2}),
    (
        "staged additions",
        "dQ is staged in shared memory, and bulk copies add it to global memory",
        {"query_gradient": QueryGradient.STAGED},
    ),
    (
        "paired products",
        "dP is issued with dV, and S of the next block with dK",
        {"schedule": Schedule.PAIRED},
    ),
    ROUNDED_P,
    (
        "dQ warpgroup",
        "a third warpgroup computes dQ, and the key warpgroups wait for nobody",
        {"query_gradient": QueryGradient.OWN_WARPGROUP},
    ),
    ("two dS buffers", "the next dS is written while dQ reads this one", {"ds_stages": 2}),
)
LONGEST_FIRST: Step = (
    "longest tiles first",
    "the tiles of several heads run side by side, those that most queries see first",
    {"tile_order": TileOrder.GROUPED, "group_heads": GROUP_HEADS},
)
PERSISTENT: Step = (
    "persistent tiles",
    "one CTA per SM takes tile after tile from a counter, and loads the next one early",
    {"tile_order": TileOrder.DYNAMIC},
)
IN_ORDER: Step = (
    "tiles in order",
    "tiles take turns at dQ, so that no kernel clears or converts sums, and dQ always has the same"
    " bits",
    {"query_gradient": QueryGradient.ORDERED},
)


def base(dtype: DType, d_head: int) -> HopperBackwardKernelConfig:
    """Return the first rung. With d_head 64 a block has 128 queries, and registers have no room for
    P in float32."""
    return HopperBackwardKernelConfig(
        dtype,
        d_head,
        B_r=64 if d_head == 128 else 128,
        B_c=128,
        stages=1,
        derivative=Derivative.EXACT if d_head == 128 else Derivative.ROUNDED,
    )


def steps(d_head: int) -> tuple[Step, ...]:
    """Return the steps without a mask, from the first rung upwards. With d_head 64 there are no
    registers for arithmetic in place."""
    if d_head == 128:
        return (*STEPS, IN_PLACE)
    return (*(step for step in STEPS if step is not ROUNDED_P), PAIRS)


def causal_steps() -> tuple[Step, ...]:
    """Return the steps that are for causal masks, which follow. A tile order and its number of
    heads are one switch."""
    return LONGEST_FIRST, PERSISTENT, IN_ORDER
