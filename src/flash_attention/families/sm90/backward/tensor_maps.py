# SPDX-License-Identifier: Apache-2.0
"""The tensor maps of a Hopper backward kernel: the boxes of its inputs and gradients."""

from __future__ import annotations

from collections.abc import Mapping

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.recipe import MapDescription
from flash_attention.families.sm90.backward.bias_gradient import (
    TILE_SUMS,
    TILES,
    describe_tiles,
    tiles_of_bias,
)
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.features import Sm90BackwardFeatures
from flash_attention.families.sm90.forward.bias import describe_bias
from flash_attention.families.sm90.forward.config import WARP_ROWS
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe

GRADIENTS = ("dq", "dk", "dv")


def maps_of(config: HopperBackwardKernelConfig, features: Sm90BackwardFeatures) -> tuple[str, ...]:
    """Return the tensors that a kernel loads or stores by TMA, in the order of the arguments that
    point at them."""
    stored = {"dq": config.orders_dq, "dk": not features.skips_dk, "dv": not features.skips_dv}
    gradients = (name for name, is_stored in stored.items() if is_stored)
    tiles = tiles_of_bias(features.program)
    of_bias = {TILE_SUMS: TILE_SUMS in tiles, "bias": features.bias, TILES: TILES in tiles}
    return ("q", "k", "v", "d_o", *gradients, *(name for name in of_bias if of_bias[name]))


def describe_all(
    config: HopperBackwardKernelConfig,
    features: Sm90BackwardFeatures,
    views: Mapping[str, TensorView],
    problem: Problem,
    keys: int,
) -> dict[str, MapDescription]:
    """Describe the tensors of maps_of(), for a launch that has so many keys. Boxes hold a block of
    queries, a tile of keys, or a warp's rows of a gradient, and are as wide as a panel of a
    shared-memory tile."""
    rows = {"q": config.B_r, "d_o": config.B_r, **dict.fromkeys(GRADIENTS, WARP_ROWS)}

    def described(name: str) -> MapDescription:
        if name == "bias":
            return describe_bias(problem, config.B_r)
        if name in (TILES, TILE_SUMS):
            return describe_tiles(problem, config.B_r, keys)
        box = (config.panel_columns, 1, rows.get(name, config.B_c))
        return describe(views[name], box, 0 if name in GRADIENTS else WIDE_PROMOTION)

    return {name: described(name) for name in maps_of(config, features)}
