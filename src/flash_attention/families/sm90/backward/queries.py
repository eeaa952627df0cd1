# SPDX-License-Identifier: Apache-2.0
"""The kernel that computes dQ = dS K, with dS from the workspace."""

from __future__ import annotations

from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import LAYOUT_ASSERTS, PARAMETER
from flash_attention.families.backward_steps import ENTRY
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.recipe import Geometry, Step
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.parts import Part
from flash_attention.families.sm90.backward.slots import FOLDER
from flash_attention.families.sm90.forward.config import (
    TARGET,
    WARP_ROWS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.wgmma import both_shared

STAGES = 4
WARPGROUPS = 2  # with 64 queries each
THREADS = WARPGROUP_THREADS * (1 + WARPGROUPS)
REGISTERS = {"producer": 24, "query": 240}
PANEL_ROWS = 64  # keys of a block, and of a panel of dS
MBARRIER_BYTES = 8


def query_step(
    config: HopperBackwardKernelConfig,
    problem: Problem,
    features: Features,
    part: Part,
    views: dict[str, TensorView],
    *,
    adds: bool,
) -> Step:
    """Return the kernel that computes dQ of a part. It `adds` to dq_sum, or stores dq."""
    tiles = -(-problem.seq_q // (WARPGROUPS * WARPGROUP_ROWS))
    grid = (part.part_heads * problem.heads_per_kv * tiles, 1, 1)
    columns = config.panel_columns
    return Step(
        query_unit(config, features, adds=adds),
        Geometry(grid, THREADS, _smem_bytes(config)),
        {
            "k": describe(views["k"], (columns, 1, PANEL_ROWS), WIDE_PROMOTION),
            "dq": describe(views["dq"], (columns, 1, WARP_ROWS)),
        },
        starts_early=True,
        values=part.values,
    )


def _smem_bytes(config: HopperBackwardKernelConfig) -> int:
    """Return the bytes of dynamic shared memory: stages of dS and K, and their mbarriers."""
    stage = PANEL_ROWS * 2 * (WARPGROUPS * PANEL_ROWS + config.d_head)
    return STAGES * (stage + 2 * MBARRIER_BYTES)


@kept
def query_unit(config: HopperBackwardKernelConfig, features: Features, *, adds: bool) -> Unit:
    """Return the translation unit of the kernel. dS knows all that is no mask and no length."""
    features = Features(features.mask, per_batch=features.per_batch)
    sums = "Added" if adds else "Stored"
    numbers = {
        "d_head": config.d_head,
        "stages": STAGES,
        "group_heads": max(1, config.group_heads),
        **{f"{role}_registers": count for role, count in REGISTERS.items()},
        "smem_bytes": _smem_bytes(config),
    }
    name = (
        f"hopper_queries_{config.dtype.name.lower()}_d{config.d_head}_{sums.lower()}"
        f"_{max(1, config.group_heads)}{features.suffix}"
    )
    source = render(
        entry=f"{ENTRY}_{name}",
        title="dQ = dS K of a Hopper backward pass",
        header="fa/sm90/backward/queries.cuh",
        bindings=(
            dtype_binding(config.dtype),
            *(Number(name, value) for name, value in numbers.items()),
            Variant("Sums", f"{FOLDER}/sums", sums),
            Variant("Mask", "attn/mask", features.mask.value),
            Variant("Lengths", "attn/lengths", "PerBatch" if features.per_batch else "Same"),
        ),
        wrappers=(both_shared(config.dtype, config.d_head, a_along_rows=True, b_along_width=True),),
        asserts=LAYOUT_ASSERTS,
        bounds=f"{THREADS}, 1",
        parameters=(
            "const __grid_constant__ fa::TensorMap k_map",
            "const __grid_constant__ fa::TensorMap dq_map",
            PARAMETER,
        ),
        body=(
            "extern __shared__ __align__(1024) char smem[];",
            "fa::sm90::backward::queries<Config>(k_map, dq_map, args, smem);",
        ),
    )
    return Unit(name, TARGET, source)
