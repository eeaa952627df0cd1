# SPDX-License-Identifier: Apache-2.0
"""The kernel that computes dV = P^T dO and dK = dS^T Q, with P and dS from the workspace."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.call.features import Features
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import LAYOUT_ASSERTS, PARAMETER
from flash_attention.families.backward_steps import ENTRY
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.recipe import Geometry, Step
from flash_attention.families.sm90.backward.parts import Part
from flash_attention.families.sm90.backward.queries import PANEL_ROWS, THREADS, WARPGROUPS, Product
from flash_attention.families.sm90.forward.config import TARGET, WARP_ROWS, WARPGROUP_ROWS
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.wgmma import both_shared

KEYS = WARPGROUPS * WARPGROUP_ROWS  # of a tile
FACTORS = {"dk": "q", "dv": "d_o"}  # the rows that dS and P are multiplied with


def key_step(
    product: Product,
    problem: BackwardProblem,
    features: Features,
    part: Part,
    views: dict[str, TensorView],
) -> Step:
    """Return the kernel that computes the wanted ones of dV and dK of a part."""
    wanted = _wanted(problem.wanted)
    tiles = part.part_heads * -(-part.part_keys // KEYS)
    columns = product.panel_columns
    rows = {
        FACTORS[name]: describe(views[FACTORS[name]], (columns, 1, PANEL_ROWS), WIDE_PROMOTION)
        for name in wanted
    }
    gradients = {name: describe(views[name], (columns, 1, WARP_ROWS)) for name in wanted}
    return Step(
        key_unit(product, features, wanted),
        Geometry((tiles * product.passes, len(wanted), 1), THREADS, product.smem_bytes),
        {**rows, **gradients},
        starts_early=True,
        values=part.values,
    )


def _wanted(wanted: Wanted) -> tuple[str, ...]:
    return tuple(name for name in FACTORS if getattr(wanted, name))


@kept
def key_unit(product: Product, features: Features, wanted: tuple[str, ...]) -> Unit:
    """Return the translation unit of the kernel. P and dS know of softcap already."""
    features = replace(features, softcap=False)
    name = f"hopper_keys_{product.name}_{'_'.join(wanted)}_{product.group_heads}{features.suffix}"
    maps = [*(FACTORS[each] for each in wanted), *wanted]
    pairs = [f"{{{FACTORS[each]}_map, {each}_map}}" for each in wanted]
    source = render(
        entry=f"{ENTRY}_{name}",
        title="dV = P^T dO and dK = dS^T Q of a backward pass of wide heads",
        header="fa/sm90/wide_backward/keys.cuh",
        bindings=(
            dtype_binding(product.dtype),
            *product.numbers,
            Number("B_r", PANEL_ROWS),
            Number("B_c", KEYS),
            Number("keys", int("dk" in wanted)),
            Number("shrinking_tiles", 0),
            Variant("Mask", "attn/mask", features.mask.value),
            Variant("Lengths", "attn/lengths", "PerBatch" if features.per_batch else "Same"),
        ),
        wrappers=(
            both_shared(product.dtype, product.columns, a_along_rows=False, b_along_width=True),
        ),
        asserts=LAYOUT_ASSERTS,
        bounds=f"{THREADS}, 1",
        parameters=(
            *(f"const __grid_constant__ fa::TensorMap {each}_map" for each in maps),
            PARAMETER,
        ),
        body=(
            "extern __shared__ __align__(1024) char smem[];",
            f"fa::sm90::wide_backward::keys<Config>({pairs[0]}, {pairs[-1]}, args, smem);",
        ),
    )
    return Unit(name, TARGET, source)
