# SPDX-License-Identifier: Apache-2.0
"""The backward pass of wide heads on sm_90 (H100, H200): P and dS are stored, and the gradients are
plain products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    VIEWS,
    backward_args,
)
from flash_attention.families.backward_steps import (
    ENTRY,
    Sums,
    prepare_step,
    sink_steps,
    stat_scratch,
    sums_steps,
)
from flash_attention.families.family import Family
from flash_attention.families.fit import check_columns, check_dtype
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Geometry, MapDescription, Recipe, Setting, Step
from flash_attention.families.sm90.backward import config as narrower
from flash_attention.families.sm90.backward.family import SUM_ORDER
from flash_attention.families.sm90.backward.parts import Part, split_work
from flash_attention.families.sm90.backward.queries import Product, query_step
from flash_attention.families.sm90.backward.slots import GROUP_HEADS
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.wgmma import both_shared
from flash_attention.families.sm90.wide.family import NEEDS_HOPPER
from flash_attention.families.sm90.wide_backward.config import (
    D_HEADS,
    PASSES,
    SLICE_COLUMNS,
    HopperWideBackwardKernelConfig,
)
from flash_attention.families.sm90.wide_backward.keys import key_step
from flash_attention.families.values import smallest_holding

NARROWER = max(narrower.D_HEADS)  # what other kernels have
STORED = ("P", "dS")
MAPS = ("q", "k", "v", "d_o")
BLOCKS_OF_QUERIES = 16  # side by side, kGroup of include/fa/sm90/wide_backward/score_tile.cuh


class Sm90WideBackward(Family[HopperWideBackwardKernelConfig]):
    """The sm_90 backward kernels for wide heads. All sums have a fixed order."""

    name = "sm_90"
    pass_ = Pass.BACKWARD
    config_type = HopperWideBackwardKernelConfig

    def resolve(self, config: HopperWideBackwardKernelConfig, features: Features) -> Features:
        """Sinks change no kernel of the pass: they are in the log-sum-exp."""
        return replace(features, sinks=False)

    @kept
    def unit(self, config: HopperWideBackwardKernelConfig, features: Features, arch: Arch) -> Unit:
        """Return the unit of the kernel that computes P and dS."""
        resolved = self.resolve(config, features)
        name = config.kernel_name() + resolved.suffix
        source = render(
            entry=f"{ENTRY}_{name}",
            title=config.short_form(),
            header="fa/sm90/wide_backward/scores.cuh",
            bindings=(
                *config.bindings(),
                Number("slopes", int(resolved.softcap)),
                Variant("Mask", "attn/mask", resolved.mask.value),
                Variant("Score", "attn/score", "Softcap" if resolved.softcap else "Plain"),
                Variant("Lengths", "attn/lengths", "PerBatch" if resolved.per_batch else "Same"),
            ),
            wrappers=(
                both_shared(config.dtype, config.B_c, a_along_rows=False, b_along_width=False),
            ),
            asserts=LAYOUT_ASSERTS,
            bounds=f"{config.num_threads}, 1",
            parameters=(
                *(f"const __grid_constant__ fa::TensorMap {name}_map" for name in MAPS),
                PARAMETER,
            ),
            body=(
                "extern __shared__ __align__(1024) char smem[];",
                f"fa::sm90::wide_backward::scores<Config>("
                f"{{{', '.join(f'{name}_map' for name in MAPS)}}}, args, smem);",
            ),
        )
        return Unit(name, config.target(arch), source)

    def recipe(
        self,
        config: HopperWideBackwardKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        assert isinstance(problem, BackwardProblem)
        check_dtype(config, problem)
        check_columns(config, problem)
        features = self.resolve(config, problem.features)
        target = config.target(setting.arch)
        arguments = backward_args(problem, views)
        if problem.idle:
            return Recipe(features, (prepare_step(problem, target),), arguments)
        work = split_work(problem, setting.workspace_bytes, STORED)
        wanted = problem.wanted
        sums = wanted.dq and work.of_keys
        columns = config.d_head if sums else 0
        named = dict(zip(VIEWS, views, strict=True))
        product = Product(config.dtype, config.pass_columns, GROUP_HEADS, PASSES)
        unit = self.unit(config, features, setting.arch)
        maps = _maps(config, named)
        steps = [prepare_step(problem, target, sum_columns=columns)]
        tiles = 0
        for part in work.parts:
            tiles += _num_tiles(config, problem, part)
            grid = (_num_ctas(config, problem, part, setting.num_sms), 1, 1)
            geometry = Geometry(grid, config.num_threads, config.smem_bytes())
            steps.append(Step(unit, geometry, maps, starts_early=True, values=part.values))
            if wanted.dk or wanted.dv:
                steps.append(key_step(product, problem, features, part, named))
            if wanted.dq:
                steps.append(query_step(product, problem, features, part, named, adds=sums))
        steps += sums_steps(problem, target, Sums(columns, SUM_ORDER, dq=sums))
        return Recipe(
            features,
            (*steps, *sink_steps(problem, target)),
            arguments,
            scratch={
                **stat_scratch(problem, sum_columns=columns),
                "ds": work.workspace_bytes,
            },
            tiles=tiles,
        )

    def is_for(self, problem: Problem) -> bool:
        widest = max(problem.d_head, problem.d_v)
        return super().is_for(problem) and NARROWER < widest <= max(D_HEADS)

    def heuristic(self, problem: Problem, arch: Arch) -> HopperWideBackwardKernelConfig | str:
        dtype = DType.from_string(str(problem.dtype))
        d_head = smallest_holding(D_HEADS, problem.d_head, problem.d_v)
        config = HopperWideBackwardKernelConfig(dtype, d_head)
        return NEEDS_HOPPER if config.broken_rule(arch) else config

    def why(self, config: HopperWideBackwardKernelConfig, problem: Problem, split: None) -> str:
        return (
            f"d_head {problem.d_head} with d_v {problem.d_v}, and other kernels have at most"
            f" {NARROWER}"
        )

    def built_features(self) -> tuple[Features, ...]:
        return PLAIN, CAUSAL


def _maps(
    config: HopperWideBackwardKernelConfig, views: dict[str, TensorView]
) -> dict[str, MapDescription]:
    """Describe q, k, v and the gradient of o. Boxes hold a slice of the rows of a tile."""
    rows = {"q": config.B_r, "d_o": config.B_r, "k": config.B_c, "v": config.B_c}
    return {
        name: describe(views[name], (SLICE_COLUMNS, 1, rows[name]), WIDE_PROMOTION) for name in MAPS
    }


def _num_tiles(config: HopperWideBackwardKernelConfig, problem: BackwardProblem, part: Part) -> int:
    queries, keys = -(-problem.seq_q // config.B_r), -(-part.part_keys // config.B_c)
    return part.part_heads * problem.heads_per_kv * queries * keys


def _num_ctas(
    config: HopperWideBackwardKernelConfig, problem: BackwardProblem, part: Part, num_sms: int
) -> int:
    """Count the CTAs, which take every so-many-th tile. A number without a common factor with the
    blocks of queries side by side leads each of them to early and late queries, of which a causal
    mask leaves tiles out."""
    ctas = min(num_sms, _num_tiles(config, problem, part))
    side_by_side = min(BLOCKS_OF_QUERIES, -(-problem.seq_q // config.B_r))
    while gcd(ctas, side_by_side) > 1:
        ctas -= 1
    return ctas


SM90_WIDE_BACKWARD: Sm90WideBackward = Sm90WideBackward()
