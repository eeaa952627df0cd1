# SPDX-License-Identifier: Apache-2.0
"""The kernel that computes dQ = dS K, with dS from the workspace."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import LAYOUT_ASSERTS, PARAMETER
from flash_attention.families.backward_steps import ENTRY
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.recipe import Geometry, Step
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


@dataclass(frozen=True)
class Product:
    """The columns of a gradient that a CTA computes, the CTAs that share those of a row, and the
    heads side by side."""

    dtype: DType
    columns: int
    group_heads: int
    passes: int = 1

    @property
    def name(self) -> str:
        """The product in the name of a kernel, before its other words."""
        shared = f"x{self.passes}" if self.passes > 1 else ""
        return f"{self.dtype.name.lower()}_d{self.columns}{shared}"

    @property
    def panel_columns(self) -> int:
        """The columns of a panel of a shared-memory tile."""
        return 64 if self.columns % 64 == 0 else 32

    @property
    def smem_bytes(self) -> int:
        """The bytes of dynamic shared memory: stages of panels of dS or P and of the rows of the
        other factor, and their mbarriers."""
        stage = PANEL_ROWS * 2 * (WARPGROUPS * PANEL_ROWS + self.columns)
        return STAGES * (stage + 2 * MBARRIER_BYTES)

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers that a kernel of the product binds."""
        numbers = {
            "d_head": self.columns,
            "passes": self.passes,
            "stages": STAGES,
            "group_heads": self.group_heads,
            **{f"{role}_registers": count for role, count in REGISTERS.items()},
            "smem_bytes": self.smem_bytes,
        }
        return tuple(Number(name, value) for name, value in numbers.items())


def query_step(
    product: Product,
    problem: Problem,
    features: Features,
    part: Part,
    views: dict[str, TensorView],
    *,
    adds: bool,
) -> Step:
    """Return the kernel that computes dQ of a part. It `adds` to dq_sum, or stores dq."""
    tiles = -(-problem.seq_q // (WARPGROUPS * WARPGROUP_ROWS))
    grid = (part.part_heads * problem.heads_per_kv * tiles * product.passes, 1, 1)
    columns = product.panel_columns
    return Step(
        query_unit(product, features, adds=adds),
        Geometry(grid, THREADS, product.smem_bytes),
        {
            "k": describe(views["k"], (columns, 1, PANEL_ROWS), WIDE_PROMOTION),
            "dq": describe(views["dq"], (columns, 1, WARP_ROWS)),
        },
        starts_early=True,
        values=part.values,
    )


@kept
def query_unit(product: Product, features: Features, *, adds: bool) -> Unit:
    """Return the translation unit of the kernel. dS knows all that is no mask and no length."""
    features = Features(features.mask, per_batch=features.per_batch)
    sums = "Added" if adds else "Stored"
    name = f"hopper_queries_{product.name}_{sums.lower()}_{product.group_heads}{features.suffix}"
    source = render(
        entry=f"{ENTRY}_{name}",
        title="dQ = dS K of a Hopper backward pass",
        header="fa/sm90/backward/queries.cuh",
        bindings=(
            dtype_binding(product.dtype),
            *product.numbers,
            Variant("Sums", f"{FOLDER}/sums", sums),
            Variant("Mask", "attn/mask", features.mask.value),
            Variant("Lengths", "attn/lengths", "PerBatch" if features.per_batch else "Same"),
        ),
        wrappers=(
            both_shared(product.dtype, product.columns, a_along_rows=True, b_along_width=True),
        ),
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
