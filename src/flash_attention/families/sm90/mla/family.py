# SPDX-License-Identifier: Apache-2.0
"""MLA decoding on sm_90 (H100, H200): all heads share one head of k, whose first columns are v."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.unit import Unit, kept
from flash_attention.families.family import Family
from flash_attention.families.forward_args import forward_args
from flash_attention.families.recipe import Geometry, MapDescription, Recipe, Setting, Step
from flash_attention.families.sm90.forward.combine import combine_unit, combining
from flash_attention.families.sm90.forward.config import tile_rows
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.families.sm90.forward.heuristic import NEEDS_HOPPER
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tensor_maps import describe
from flash_attention.families.sm90.mla import splits
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.families.sm90.mla.d_heads import is_mla, or_mla
from flash_attention.families.sm90.mla.features import (
    MlaFeatures,
    bindings,
    features_of,
    resolve,
)
from flash_attention.families.sm90.mla.fit import check_fits, elsewhere, refusal
from flash_attention.families.sm90.split_v import BLOCK_KEYS, HALVES, PANEL_COLUMNS
from flash_attention.families.sm90.unit import forward_unit
from flash_attention.families.sm90.wgmma import (
    both_shared,
    from_registers,
    from_registers_by_rows,
    from_shared,
)
from flash_attention.families.sm90.wide.config import D_HEADS as WIDE_D_HEADS

RESCALE_THRESHOLD = 8
WIDEST = max(WIDE_D_HEADS)  # head dimension of kernels that read any v
BUILT = replace(resolve(PLAIN), splits=SplitKind.EVEN)
"""The features of decoding with a dense cache, of the usual number of heads."""


class Sm90Mla(Family[HopperMlaKernelConfig]):
    """The sm_90 kernels for MLA decoding. A second kernel combines partial results."""

    name = "sm_90"
    config_type = HopperMlaKernelConfig
    splits_keys = True
    strength = "read v with k, as a part of it"

    def resolve(self, config: HopperMlaKernelConfig, features: Features) -> MlaFeatures:
        return resolve(features)

    def features(
        self,
        config: HopperMlaKernelConfig,
        problem: Problem,
        return_lse: bool = False,
        split: KvSplits | None = None,
    ) -> MlaFeatures:
        return features_of(problem, split or splits.whole(problem))

    @kept
    def unit(self, config: HopperMlaKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = resolve(features)
        half = config.d_v // HALVES
        return forward_unit(
            *(config, resolved.suffix, arch),
            folder="mla",
            mapped="qk",
            bindings=(*config.bindings(), *bindings(config, resolved)),
            wrappers=(
                from_shared(config.dtype, config.B_c),
                from_registers_by_rows(config.dtype, config.B_c),
                from_registers(config.dtype, half),
                both_shared(config.dtype, half, a_along_rows=False, b_along_width=True),
            ),
        )

    def recipe(
        self,
        config: HopperMlaKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        kv_splits: KvSplits = setting.split or splits.choose_splits(problem, setting.num_sms)
        check_fits(config, problem, views, kv_splits)
        features = features_of(problem, kv_splits)
        ctas = features.ctas
        grid = (max(kv_splits.num_ctas(problem, ctas), 1), ctas, 1)  # packed queries may be none
        main = Step(
            self.unit(config, features, setting.arch),
            Geometry(grid, config.num_threads, config.smem_bytes()),
            {} if problem.idle else _maps(config, views, features),
        )
        combine = combining(config, problem, features, kv_splits.tile_rows(ctas), setting.arch)
        return Recipe(
            features,
            (main, combine) if kv_splits.is_split else (main,),
            forward_args(
                problem, views, key_blocks=kv_splits.key_blocks, split_blocks=kv_splits.blocks
            ),
            scratch=kv_splits.scratch(problem, ctas),
            tiles=kv_splits.num_tiles(problem, ctas) * ctas,
            num_splits=grid[0] * ctas if kv_splits.is_split else 0,
            refusal=None if problem.idle else elsewhere,
        )

    def split(self, config: HopperMlaKernelConfig, problem: Problem, keys: int) -> KvSplits:
        return splits.of_keys(problem, keys)

    def takes_columns(self, d_head: int, d_v: int) -> bool:
        return is_mla(d_head, d_v)

    def column_hint(self, d_head: int) -> str:
        return or_mla(d_head)

    def is_for(self, problem: Problem) -> bool:
        return super().is_for(problem) and is_mla(problem.d_head, problem.d_v)

    def heuristic(self, problem: Problem, arch: Arch) -> HopperMlaKernelConfig | str:
        if why := refusal(problem) or _left_to_wide(problem):
            return why
        dtype = DType.from_string(str(problem.dtype))
        threshold = 0 if problem.batch_invariant else RESCALE_THRESHOLD
        config = HopperMlaKernelConfig(
            dtype, problem.d_v, rescale_threshold=threshold, rotary_in_registers=True
        )
        return NEEDS_HOPPER if config.broken_rule(arch) else config

    def why(self, config: HopperMlaKernelConfig, problem: Problem, split: KvSplits | None) -> str:
        return f"d_head {config.d_head} with d_v {config.d_v} and one head of k and v is MLA"

    def choose_split(
        self, problem: Problem, arch: Arch, num_sms: int, split_keys: int | None
    ) -> tuple[HopperMlaKernelConfig, KvSplits] | str:
        config = self.heuristic(problem, arch)
        if isinstance(config, str):
            return config
        if problem.idle:
            return "there is nothing to compute"
        if split_keys is not None:
            return config, splits.of_keys(problem, split_keys)
        return config, splits.choose_splits(problem, num_sms)

    def built_features(self) -> tuple[Features, ...]:
        return BUILT, replace(BUILT, per_batch=True, page_keys=BLOCK_KEYS)

    def companions(self, config: HopperMlaKernelConfig, arch: Arch) -> list[Unit]:
        rows = tile_rows(BUILT.ctas, BUILT.heads_together)
        return [combine_unit(config.dtype, BUILT, rows, config.d_v, config.target(arch))]


def _left_to_wide(problem: Problem) -> str | None:
    """Say why kernels for wide heads run a problem that MLA kernels could run, if they do."""
    packed = problem.total_q is not None or problem.total_k is not None
    if problem.batch_invariant and problem.d_head <= WIDEST:
        return "batch_invariant asks for kernels that packed sequences have, too"
    if packed and problem.d_head <= WIDEST:
        return f"packed sequences of d_head {problem.d_head} may have a v of their own"
    return None


def _maps(
    config: HopperMlaKernelConfig, views: Sequence[TensorView], features: MlaFeatures
) -> dict[str, MapDescription]:
    """Describe q and k. Boxes hold the rows of a CTA, and a key block as far as a page has it."""
    boxes = (features.q_box, (1, features.box_keys(config.B_c)))
    return {
        name: describe(view, (PANEL_COLUMNS, *box))
        for name, view, box in zip("qk", views, boxes, strict=False)
    }


SM90_MLA: Sm90Mla = Sm90Mla()
