# SPDX-License-Identifier: Apache-2.0
"""The forward pass of e4m3 tensors on sm_90 (H100, H200)."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.arch import Arch
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3 as E4M3_TENSOR
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept
from flash_attention.errors import UnsupportedError
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.family import Family
from flash_attention.families.fit import check_columns, check_dtype, check_values
from flash_attention.families.recipe import (
    Geometry,
    Grid,
    Recipe,
    Resize,
    Resized,
    Setting,
    Step,
)
from flash_attention.families.sm90.forward.decode import Steps
from flash_attention.families.sm90.forward.features import GROUP_KEYS, Walk
from flash_attention.families.sm90.forward.fit import check_tiles
from flash_attention.families.sm90.forward.mixed import few_queries
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.fp8.args import LAYOUT_ASSERTS, PARAMETER, fp8_args
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.fp8.heuristic import (
    decisive,
    heuristic,
    unreadable,
)
from flash_attention.families.sm90.fp8.tensor_maps import describe_all
from flash_attention.families.sm90.fp8.transpose import (
    pages_variant,
    step_keys,
    tiles_bytes,
    transpose_unit,
    transposing,
    transposing_grid,
)
from flash_attention.families.sm90.unit import forward_unit
from flash_attention.families.sm90.wgmma import E4M3, from_registers_by_rows, from_shared


class Sm90Fp8Forward(Family[HopperFp8KernelConfig]):
    """The sm_90 forward kernels for e4m3. Another kernel transposes V before each, unless V is
    given transposed."""

    name = "sm_90"
    config_type = HopperFp8KernelConfig
    inputs = (E4M3_TENSOR,)
    takes_transposed_v = True
    strength = "multiply numbers of 8 bits as they are"

    def resolve(self, config: HopperFp8KernelConfig, features: Features) -> Features:
        if features.page_keys and config.values_transposed:
            raise UnsupportedError(
                "block_table is asked for, and a v in pages has contiguous columns; pass a config"
                " with values_transposed=False, or leave config out"
            )
        return features

    @kept
    def unit(self, config: HopperFp8KernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = self.resolve(config, features)
        scores = from_registers_by_rows if config.q_in_registers else from_shared
        walk = Walk[config.tile_order.name]
        box_keys = config.box_keys(resolved.page_keys)
        uneven = resolved.per_batch and not config.values_transposed  # with which q is dense
        if uneven and walk is Walk.DYNAMIC:
            walk = Walk.PACKED
        weighted = from_registers_by_rows(E4M3, config.value_rows)
        return forward_unit(
            *(config, resolved.suffix, arch),
            folder="fp8",
            mapped="qkv" if config.values_transposed else "qk",
            bindings=(
                *config.bindings(),
                Variant("TileOrder", "sm90/tile_order", walk.value),
                *shared_bindings(resolved),
                Variant("Rows", "attn/rows", "OneHead"),
                Variant("Splits", "sm90/splits", "Whole"),
                pages_variant(resolved.page_keys, copied=box_keys % GROUP_KEYS > 0),
                Number("box_keys", box_keys),
            ),
            wrappers=list(dict.fromkeys((scores(E4M3, config.B_c), weighted))),
            parameter=PARAMETER,
            asserts=LAYOUT_ASSERTS,
        )

    def recipe(
        self,
        config: HopperFp8KernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        features = self.features(config, problem)
        if why := unreadable(problem):
            raise UnsupportedError(f"{why}; leave config out, or pass dense tensors")
        if problem.total_q is not None and config.tile_order is not TileOrder.DYNAMIC:
            raise UnsupportedError(
                "cu_seqlens_q is given, and tiles of sequences of different lengths are handed out"
                f" by a counter; the config has tile_order=TileOrder.{config.tile_order.name}: pass"
                " one with TileOrder.DYNAMIC, or leave config out"
            )
        check_dtype(config, problem)
        check_values(config, problem)
        check_columns(config, problem)
        check_tiles(config, problem)
        grid = _grid(config, problem, setting.num_sms)
        target = config.target(setting.arch)
        before = transposing(config, problem, target)
        main = Step(
            self.unit(config, features, setting.arch),
            Geometry(grid, config.num_threads, config.smem_bytes()),
            {} if problem.idle else describe_all(config, views, problem.page_keys),
            starts_early=bool(before),
        )
        return Recipe(
            features,
            (*before, main),
            fp8_args(problem, views, v_tiles_step=step_keys(config)),
            scratch={"v_tiles": tiles_bytes(config, problem)} if before else {},
            counts_tiles=config.tile_order is TileOrder.DYNAMIC and not problem.idle,
            tiles=problem.num_tiles(config.B_r),
            main=len(before),
            resize=_resizing(config, problem, setting.num_sms),
        )

    def companions(self, config: HopperFp8KernelConfig, arch: Arch) -> list[Unit]:
        if config.values_transposed:
            return []
        return [transpose_unit(config, config.target(arch))]

    def heuristic(self, problem: Problem, arch: Arch) -> HopperFp8KernelConfig | str:
        return heuristic(problem, arch)

    def built_features(self) -> tuple[Features, ...]:
        return PLAIN, CAUSAL


def _grid(config: HopperFp8KernelConfig, problem: Problem, num_sms: int) -> Grid:
    tiles = problem.num_tiles(config.B_r)
    return tiles if config.tile_order is TileOrder.ONE_EACH else min(tiles, num_sms), 1, 1


def _resizing(config: HopperFp8KernelConfig, problem: Problem, num_sms: int) -> Resize | None:
    """Return what resizes the recipe of a problem whose sequences differ in length."""
    if problem.idle or not problem.per_batch or config.values_transposed:
        return None
    kind, decided = Steps.of(problem, num_sms), decisive(config, problem)
    shared = few_queries(problem)

    def resize(other: Problem) -> Resized | None:
        if Steps.of(other, num_sms) is not kind or decisive(config, other) != decided:
            return None
        if few_queries(other) != shared:
            return None
        check_tiles(config, other)
        return Resized(
            (transposing_grid(config, other), _grid(config, other, num_sms)),
            {"v_tiles": tiles_bytes(config, other)},
        )

    return resize


SM90_FP8: Sm90Fp8Forward = Sm90Fp8Forward()
