# SPDX-License-Identifier: Apache-2.0
"""The tensor maps of a Hopper backward kernel: the boxes of its inputs and gradients."""

from __future__ import annotations

from collections.abc import Mapping

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.families.recipe import MapDescription
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.features import Sm90BackwardFeatures
from flash_attention.families.sm90.forward.bias import describe_bias
from flash_attention.families.sm90.forward.config import WARP_ROWS
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe

GRADIENTS = ("dq", "dk", "dv")


def maps_of(config: HopperBackwardKernelConfig, features: Sm90BackwardFeatures) -> tuple[str, ...]:
    """Return the tensors that a kernel loads or stores by TMA, in the order of its arguments."""
    stored = {"dq": config.orders_dq, "dk": not features.skips_dk, "dv": not features.skips_dv}
    bias = ("bias",) if features.bias else ()
    return ("q", "k", "v", "d_o", *(name for name, is_stored in stored.items() if is_stored), *bias)


def describe_all(
    config: HopperBackwardKernelConfig,
    features: Sm90BackwardFeatures,
    views: Mapping[str, TensorView],
    problem: Problem,
) -> dict[str, MapDescription]:
    """Describe the tensors of maps_of(). Boxes hold a block of queries, a tile of keys, or a warp's
    rows of a gradient, and are as wide as a panel of a shared-memory tile."""
    rows = {"q": config.B_r, "d_o": config.B_r, **dict.fromkeys(GRADIENTS, WARP_ROWS)}
    return {
        name: describe_bias(problem, config.B_r)
        if name == "bias"
        else describe(
            views[name],
            (config.panel_columns, 1, rows.get(name, config.B_c)),
            0 if name in GRADIENTS else WIDE_PROMOTION,
        )
        for name in maps_of(config, features)
    }
