# SPDX-License-Identifier: Apache-2.0
"""The sm_80 family, backward: cp.async, ldmatrix and mma.sync; runs on Ampere and newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import LAYOUT_ASSERTS, PARAMETER, backward_args
from flash_attention.families.backward_steps import (
    ENTRY,
    convert_step,
    prepare_step,
    row_blocks,
    sink_grids,
    sink_steps,
    stat_scratch,
)
from flash_attention.families.family import Family
from flash_attention.families.fit import check_columns, check_dtype, check_grid
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Geometry, Grid, Recipe, Resized, Setting, Step
from flash_attention.families.sm80.backward import features as own_features
from flash_attention.families.sm80.backward import space
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.features import Sm80BackwardFeatures, kernels_of
from flash_attention.families.sm80.backward.heuristic import heuristic
from flash_attention.families.values import Violation


class Sm80Backward(Family[FlashBackwardKernelConfig]):
    """Grids of (blocks of own rows, heads, batch). A deterministic dQ has a launch of its own."""

    name = "sm_80"
    pass_ = Pass.BACKWARD
    config_type = FlashBackwardKernelConfig
    drops = True

    def resolve(
        self, config: FlashBackwardKernelConfig, features: Features
    ) -> Sm80BackwardFeatures:
        return own_features.resolve(features)

    @kept
    def unit(self, config: FlashBackwardKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = self.resolve(config, features)
        name = config.kernel_name() + resolved.suffix
        source = render(
            entry=f"{ENTRY}_kernel_{name}",
            title=config.short_form(),
            header="fa/sm80/backward/backward.cuh",
            bindings=(*config.bindings(), *resolved.bindings(config)),
            asserts=LAYOUT_ASSERTS,
            bounds=f"{config.num_threads}",
            parameters=(PARAMETER,),
            body=(
                "extern __shared__ __align__(1024) char smem[];",
                "fa::sm80::backward::run<Config>(args, smem);",
            ),
        )
        return Unit(name, config.target(arch), source)

    def recipe(
        self,
        config: FlashBackwardKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        assert isinstance(problem, BackwardProblem)
        check_dtype(config, problem)
        check_columns(config, problem)
        check_grid(problem)
        kernels = kernels_of(problem)
        target = config.target(setting.arch)
        sums = config.d_head if any(kernel.adds_dq for kernel in kernels) else 0
        convert = [convert_step(problem, target, sum_columns=sums, order=config.sum_order)]
        steps = (
            prepare_step(problem, target, sum_columns=sums),
            *(self._main_step(config, problem, kernel, setting.arch) for kernel in kernels),
            *(convert if sums else ()),
            *sink_steps(problem, target),
        )

        def resize(other: Problem) -> Resized:
            assert isinstance(other, BackwardProblem)
            check_grid(other)
            rows = row_blocks(other)
            main = (_main_grid(config, other, kernel) for kernel in kernels)
            grids = (rows, *main, *((rows,) if sums else ()), *sink_grids(other))
            return Resized(grids, stat_scratch(other, sum_columns=sums))

        return Recipe(
            kernels[0] if kernels else self.resolve(config, problem.features),
            steps,
            backward_args(problem, views),
            scratch=stat_scratch(problem, sum_columns=sums),
            resize=resize if problem.per_batch and not problem.idle else None,
        )

    def _main_step(
        self,
        config: FlashBackwardKernelConfig,
        problem: BackwardProblem,
        kernel: Sm80BackwardFeatures,
        arch: Arch,
    ) -> Step:
        grid = _main_grid(config, problem, kernel)
        geometry = Geometry(grid, config.num_threads, kernel.smem_bytes(config))
        return Step(self.unit(config, kernel, arch), geometry)

    def heuristic(self, problem: Problem, arch: Arch) -> FlashBackwardKernelConfig | str:
        return heuristic(problem, arch)

    def search_space(self) -> Iterator[FlashBackwardKernelConfig]:
        return space.search_space()

    def combinations(
        self, dtype: DType, d_head: int
    ) -> Iterator[FlashBackwardKernelConfig | Violation]:
        return space.combinations(dtype, d_head)

    def neighbours(self, config: FlashBackwardKernelConfig) -> list[FlashBackwardKernelConfig]:
        return space.neighbours(config)


def _main_grid(
    config: FlashBackwardKernelConfig, problem: BackwardProblem, kernel: Sm80BackwardFeatures
) -> Grid:
    rows, heads = problem.seq_k, problem.heads_k
    if kernel.owns_queries:
        rows, heads = problem.seq_q, problem.heads
    return max(1, -(-rows // config.B_c)), heads, problem.batch


SM80_BACKWARD: Sm80Backward = Sm80Backward()
