# SPDX-License-Identifier: Apache-2.0
"""Wide heads on sm_90 (H100, H200): head dimensions beyond the registers of a warpgroup."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.unit import Unit, kept
from flash_attention.families.family import Family
from flash_attention.families.forward_args import forward_args
from flash_attention.families.recipe import Geometry, MapDescription, Recipe, Setting, Step
from flash_attention.families.sm90.forward import config as forward
from flash_attention.families.sm90.forward.combine import combining
from flash_attention.families.sm90.forward.decode import splits_of, why_not_decode
from flash_attention.families.sm90.forward.features import Sm90Features, Walk
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.split_v import BLOCK_KEYS, HALVES, PANEL_COLUMNS
from flash_attention.families.sm90.unit import forward_unit
from flash_attention.families.sm90.wgmma import both_shared, from_registers, from_shared
from flash_attention.families.sm90.wide.config import (
    D_HEADS,
    VALUE_COLUMNS,
    HopperWideKernelConfig,
)
from flash_attention.families.sm90.wide.features import bindings, features_of, resolve, walk_of
from flash_attention.families.sm90.wide.fit import check_fits
from flash_attention.families.values import smallest_holding

RESCALE_THRESHOLD = 8
MIN_SPLIT_BLOCKS = 2  # a split of one block leaves half of a CTA without work
NARROWER = max(forward.D_HEADS)  # what other kernels have
NEEDS_HOPPER = f"head dimensions over {NARROWER} need sm_90 (H100, H200)"


class Sm90Wide(Family[HopperWideKernelConfig]):
    """The sm_90 kernels for wide heads. With split-KV, a second kernel combines partial results."""

    name = "sm_90"
    config_type = HopperWideKernelConfig
    splits_keys = True

    def resolve(self, config: HopperWideKernelConfig, features: Features) -> Sm90Features:
        return resolve(features)

    def features(
        self,
        config: HopperWideKernelConfig,
        problem: Problem,
        return_lse: bool = False,
        split: KvSplits | None = None,
    ) -> Sm90Features:
        return features_of(problem, split)

    @kept
    def unit(self, config: HopperWideKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = resolve(features)
        half = config.d_v // HALVES
        return forward_unit(
            *(config, resolved.suffix, arch),
            folder="wide",
            mapped="qkv",
            bindings=(*config.bindings(), *bindings(config, resolved)),
            wrappers=(
                from_shared(config.dtype, config.B_c),
                from_registers(config.dtype, half),
                both_shared(config.dtype, half, a_along_rows=False, b_along_width=True),
            ),
        )

    def recipe(
        self,
        config: HopperWideKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        kv_splits: KvSplits | None = setting.split
        check_fits(config, problem, kv_splits)
        features = features_of(problem, kv_splits)
        main = Step(
            self.unit(config, features, setting.arch),
            Geometry(
                (_num_ctas(config, problem, features, setting), 1, 1),
                config.num_threads,
                config.smem_bytes(),
            ),
            {} if problem.idle else _maps(config, views, features),
        )
        if kv_splits is None:
            return Recipe(
                features,
                (main,),
                forward_args(problem, views),
                counts_tiles=walk_of(features).counts_tiles and not problem.idle,
                tiles=problem.num_tiles(config.B_r),
            )
        combine = combining(config, problem, features, kv_splits.tile_rows(1), setting.arch)
        return Recipe(
            features,
            (main, combine) if kv_splits.is_split else (main,),
            forward_args(
                problem, views, key_blocks=kv_splits.key_blocks, split_blocks=kv_splits.blocks
            ),
            scratch=kv_splits.scratch(problem, 1),
            tiles=kv_splits.num_tiles(problem, 1),
            num_splits=main.geometry.grid[0] if kv_splits.is_split else 0,
        )

    def split(self, config: HopperWideKernelConfig, problem: Problem, keys: int) -> KvSplits:
        return KvSplits.of_keys(problem, BLOCK_KEYS, keys)

    def is_for(self, problem: Problem) -> bool:
        wide = max(problem.d_head, problem.d_v) > NARROWER
        return super().is_for(problem) and wide and _columns(problem) != (0, 0)

    def heuristic(self, problem: Problem, arch: Arch) -> HopperWideKernelConfig | str:
        dtype = DType.from_string(str(problem.dtype))
        threshold = 0 if problem.batch_invariant else RESCALE_THRESHOLD
        config = HopperWideKernelConfig(dtype, *_columns(problem), threshold)
        return NEEDS_HOPPER if config.broken_rule(arch) else config

    def why(self, config: HopperWideKernelConfig, problem: Problem, split: KvSplits | None) -> str:
        return (
            f"d_head {problem.d_head} with d_v {problem.d_v}, and other kernels have at most"
            f" {NARROWER}"
        )

    def choose_split(
        self, problem: Problem, arch: Arch, num_sms: int, split_keys: int | None
    ) -> tuple[HopperWideKernelConfig, KvSplits] | str:
        config = self.heuristic(problem, arch)
        if isinstance(config, str):
            return config
        if problem.total_q is not None:
            return "q is packed (cu_seqlens_q), and the keys of packed queries are not split"
        if why := why_not_decode(problem):
            return why
        kv_splits = splits_of(
            *(problem, config.B_c, num_sms, split_keys),
            most_whole=MIN_SPLIT_BLOCKS,
            least=MIN_SPLIT_BLOCKS,
        )
        return kv_splits if isinstance(kv_splits, str) else (config, kv_splits)

    def built_features(self) -> tuple[Features, ...]:
        return PLAIN, CAUSAL


def _columns(problem: Problem) -> tuple[int, int]:
    """Return the smallest d_head and d_v of a config that hold those of a problem; 0 for none."""
    d_head = smallest_holding(D_HEADS, problem.d_head)
    d_v = smallest_holding(VALUE_COLUMNS, problem.d_v)
    return (d_head, d_v) if d_head and d_v else (0, 0)


def _num_ctas(
    config: HopperWideKernelConfig, problem: Problem, features: Sm90Features, setting: Setting
) -> int:
    """Count the CTAs: one per split, or as many as multiprocessors, which take tiles."""
    if setting.split is not None:
        kv_splits: KvSplits = setting.split
        return kv_splits.num_ctas(problem, 1)
    tiles = problem.num_tiles(config.B_r)
    least = 1 if walk_of(features) is Walk.PACKED else 0  # packed sequences may have no tile at all
    return min(max(tiles, least), setting.num_sms)


def _maps(
    config: HopperWideKernelConfig, views: Sequence[TensorView], features: Sm90Features
) -> dict[str, MapDescription]:
    """Describe q, k and v. Boxes hold the rows of a CTA, and a key block as far as a page has
    it."""
    keys = (1, features.box_keys(config.B_c))
    once = 0 if features.is_decode else WIDE_PROMOTION
    boxes = ((features.q_box, WIDE_PROMOTION), (keys, once), (keys, once))
    return {
        name: describe(view, (PANEL_COLUMNS, *box), promotion)
        for name, view, (box, promotion) in zip("qkv", views, boxes, strict=False)
    }


SM90_WIDE: Sm90Wide = Sm90Wide()
