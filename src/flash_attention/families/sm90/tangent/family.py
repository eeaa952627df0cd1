# SPDX-License-Identifier: Apache-2.0
"""Tangents on sm_90 (H100, H200): one kernel computes the output and its tangent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Variant
from flash_attention.compile.unit import Unit, kept
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.family import Family
from flash_attention.families.fields import choices
from flash_attention.families.fit import check_columns, check_dtype
from flash_attention.families.forward_args import fill_forward_args
from flash_attention.families.neighbours import neighbours_of
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Geometry, MapDescription, Recipe, Setting, Step
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS
from flash_attention.families.sm90.forward.fit import check_tiles
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.tangent.args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    TangentKernelArgs,
)
from flash_attention.families.sm90.tangent.config import (
    D_HEADS,
    PANEL_COLUMNS,
    HopperTangentKernelConfig,
)
from flash_attention.families.sm90.unit import forward_unit
from flash_attention.families.sm90.wgmma import from_registers, from_shared
from flash_attention.families.values import Violation, smallest_holding

MAPPED = ("q", "k", "v", "q_tangent", "k_tangent", "v_tangent")
BLOCK_KEYS = {64: 96, 128: 64}  # by d_head: S and O with their tangents fill the registers
THRESHOLDS = {DType.BF16: 8, DType.FP16: 0}
GROUP_MIB = 32
TILE = ("consumers", "B_c", "stages")
ORDERS = ((TileOrder.DYNAMIC, GROUP_MIB), (TileOrder.PERSISTENT, 0))
INSTEAD = (
    "compute it on the CPU, or call torch's scaled_dot_product_attention under"
    " sdpa_kernel(SDPBackend.MATH)"
)


class Sm90Tangent(Family[HopperTangentKernelConfig]):
    """The sm_90 kernels for the output and its tangent."""

    name = "sm_90"
    pass_ = Pass.TANGENT
    config_type = HopperTangentKernelConfig
    extrapolates = True

    def resolve(self, config: HopperTangentKernelConfig, features: Features) -> Features:
        if features != Features(features.mask, features.softcap):
            raise UnsupportedError(
                f"{', '.join(features.words())} are asked for, and kernels for tangents have masks"
                " and softcap alone; leave the others out"
            )
        return features

    @kept
    def unit(self, config: HopperTangentKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = self.resolve(config, features)
        return forward_unit(
            *(config, resolved.suffix, arch),
            folder="tangent",
            mapped=MAPPED,
            bindings=(
                *config.bindings(),
                *shared_bindings(resolved),
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

    def recipe(
        self,
        config: HopperTangentKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        """Return how a config runs a problem. `views` are of q, k, v, the output, and the tangents
        of the first three. That of the output has its strides."""
        features = self.features(config, problem)
        check_dtype(config, problem)
        check_columns(config, problem)
        check_tiles(config, problem)
        arguments = TangentKernelArgs()
        fill_forward_args(arguments, problem, views[:4])
        tiles = problem.num_tiles(config.B_r)
        one_each = config.tile_order is TileOrder.ONE_EACH
        grid = (tiles if one_each else min(tiles, setting.num_sms), 1, 1)
        step = Step(
            self.unit(config, features, setting.arch),
            Geometry(grid, config.num_threads, config.smem_bytes()),
            {} if problem.idle else _maps(config, views),
        )
        return Recipe(
            features,
            (step,),
            arguments,
            counts_tiles=config.tile_order is TileOrder.DYNAMIC and not problem.idle,
            tiles=tiles,
        )

    def heuristic(self, problem: Problem, arch: Arch) -> HopperTangentKernelConfig | str:
        d_head = smallest_holding(D_HEADS, problem.d_head, problem.d_v)
        if not d_head:
            return f"kernels for tangents have head dimensions up to {max(D_HEADS)}; {INSTEAD}"
        config = _usual(DType.from_string(str(problem.dtype)), d_head)
        needs = f"a kernel for tangents needs sm_90 (H100, H200); {INSTEAD}"
        return needs if config.broken_rule(arch) else config

    def built_features(self) -> tuple[Features, ...]:
        return PLAIN, CAUSAL

    def search_space(self) -> Iterator[HopperTangentKernelConfig]:
        for dtype, d_head in product(DType, D_HEADS):
            found = self.combinations(dtype, d_head)
            yield from (one for one in found if isinstance(one, HopperTangentKernelConfig))

    def combinations(
        self, dtype: DType, d_head: int
    ) -> Iterator[HopperTangentKernelConfig | Violation]:
        usual, values = _usual(dtype, d_head), choices(HopperTangentKernelConfig)
        tiles = product(*(values[name] for name in TILE))
        for numbers, (order, group) in product(tiles, ORDERS):
            tile = dict(zip(TILE, numbers, strict=True))
            try:
                yield replace(usual, **tile, tile_order=order, group_mib=group)
            except KernelConfigError as error:
                yield Violation(error.rule, str(error))

    def neighbours(self, config: HopperTangentKernelConfig) -> list[HopperTangentKernelConfig]:
        group = config.group_mib
        return neighbours_of(
            config,
            fixed=("rescale_threshold",),
            values={"group_mib": (group // 2, group * 2)},
            together=[{"tile_order": order, "group_mib": mib} for order, mib in ORDERS],
        )


def _usual(dtype: DType, d_head: int) -> HopperTangentKernelConfig:
    return HopperTangentKernelConfig(
        dtype,
        d_head,
        consumers=2,
        B_c=BLOCK_KEYS[d_head],
        stages=2,
        rescale_threshold=THRESHOLDS[dtype],
        group_mib=GROUP_MIB,
    )


def _maps(
    config: HopperTangentKernelConfig, views: Sequence[TensorView]
) -> dict[str, MapDescription]:
    """Describe q, k, v and their tangents. Boxes hold the rows of a consumer, and a key block."""
    boxes = {"q": WARPGROUP_ROWS, "k": config.B_c, "v": config.B_c}
    by_name = {view.name: view for view in views}
    return {
        name: describe(by_name[name], (PANEL_COLUMNS, 1, boxes[name[0]]), WIDE_PROMOTION)
        for name in MAPPED
    }


SM90_TANGENT: Sm90Tangent = Sm90Tangent()
