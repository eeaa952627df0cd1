# SPDX-License-Identifier: Apache-2.0
"""Tangents on sm_90 (H100, H200): one kernel computes the output and its tangent."""

from __future__ import annotations

from collections.abc import Mapping

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Variant
from flash_attention.compile.unit import Unit, kept
from flash_attention.errors import UnsupportedError
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.forward_args import fill_forward_args
from flash_attention.families.recipe import Geometry, Recipe, Step
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.tangent.args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    TangentKernelArgs,
)
from flash_attention.families.sm90.tangent.config import (
    BLOCK_KEYS,
    PANEL_COLUMNS,
    HopperTangentKernelConfig,
)
from flash_attention.families.sm90.unit import forward_unit
from flash_attention.families.sm90.wgmma import from_registers, from_shared
from flash_attention.families.values import smallest_holding

MAPPED = ("q", "k", "v", "q_tangent", "k_tangent", "v_tangent")


def check_runs(problem: Problem, arch: Arch) -> None:
    """Raise UnsupportedError unless a kernel computes a problem with tangents on `arch`."""
    widest = max(BLOCK_KEYS)
    lacks = {
        f"this is {arch.name}, and its kernel needs sm_90 (H100, H200)": arch.name != "sm_90",
        f"q has d_head {problem.d_head} and v {problem.d_v}, and its kernel takes at most"
        f" {widest}": max(problem.d_head, problem.d_v) > widest,
    }
    for why, is_lacking in lacks.items():
        if is_lacking:
            raise UnsupportedError(
                f"a tensor has a tangent, and there is no forward-mode derivative of this call:"
                f" {why}; compute it on the CPU, or call torch's scaled_dot_product_attention under"
                " sdpa_kernel(SDPBackend.MATH)"
            )


def config_of(problem: Problem) -> HopperTangentKernelConfig:
    """Return the config for a problem whose head dimensions some kernel has."""
    d_head = smallest_holding(BLOCK_KEYS, problem.d_head, problem.d_v)
    return HopperTangentKernelConfig(DType.from_string(str(problem.dtype)), d_head)


@kept
def tangent_unit(config: HopperTangentKernelConfig, features: Features, arch: Arch) -> Unit:
    """Return the translation unit of a config for a mask."""
    return forward_unit(
        *(config, features.suffix, arch),
        folder="tangent",
        mapped=MAPPED,
        bindings=(
            *config.bindings(),
            *shared_bindings(features),
            Variant("Rows", "attn/rows", "OneHead"),
            Variant("Splits", "sm90/splits", "Whole"),
            Variant("Pages", "sm90/pages", "Contiguous"),
        ),
        wrappers=(
            from_shared(config.dtype, config.B_c),
            from_registers(config.dtype, config.d_head),
        ),
        parameter=PARAMETER,
        asserts=LAYOUT_ASSERTS,
    )


def tangent_recipe(
    problem: Problem, views: Mapping[str, TensorView], arch: Arch, num_sms: int
) -> Recipe:
    """Return how a kernel computes the output and its tangent, which have the same strides."""
    config = config_of(problem)
    config.check(arch)
    boxes = {"q": WARPGROUP_ROWS, "k": config.B_c, "v": config.B_c}
    maps = {
        name: describe(views[name], (PANEL_COLUMNS, 1, boxes[name[0]]), WIDE_PROMOTION)
        for name in MAPPED
    }
    arguments = TangentKernelArgs()
    fill_forward_args(arguments, problem, [views[name] for name in "qkvo"])
    tiles = problem.num_tiles(config.B_r)
    geometry = Geometry((min(tiles, num_sms), 1, 1), config.num_threads, config.smem_bytes())
    step = Step(tangent_unit(config, problem.features, arch), geometry, maps)
    return Recipe(problem.features, (step,), arguments, counts_tiles=True, tiles=tiles)
