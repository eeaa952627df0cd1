# SPDX-License-Identifier: Apache-2.0
"""The sm_80 family, backward: cp.async, ldmatrix and mma.sync; runs on Ampere and newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    BackwardKernelArgs,
    backward_args,
)
from flash_attention.families.backward_steps import (
    ENTRY,
    Sums,
    prepare_step,
    prepared_blocks,
    sink_grids,
    sink_steps,
    stat_scratch,
    sums_grids,
    sums_steps,
)
from flash_attention.families.block_lists import Listing, Lists
from flash_attention.families.family import Family
from flash_attention.families.fit import check_columns, check_dtype, check_grid
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Geometry, Grid, Recipe, Resized, Setting, Step
from flash_attention.families.sm80.backward import features as own_features
from flash_attention.families.sm80.backward import space
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.features import Sm80BackwardFeatures, kernels_of
from flash_attention.families.sm80.backward.heuristic import heuristic
from flash_attention.families.traced_args import layout_asserts, parameter, prelude
from flash_attention.families.values import Violation


class Sm80Backward(Family[FlashBackwardKernelConfig]):
    """Grids of (blocks of own rows, heads, batch). A deterministic dQ has a launch of its own."""

    name = "sm_80"
    pass_ = Pass.BACKWARD
    config_type = FlashBackwardKernelConfig
    drops = True
    has_functions = True

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
            asserts=layout_asserts(BackwardKernelArgs, resolved.program, LAYOUT_ASSERTS),
            bounds=f"{config.num_threads}",
            prelude=prelude(resolved.program),
            parameters=(parameter(BackwardKernelArgs, resolved.program, PARAMETER),),
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
        arguments = backward_args(problem, views)
        sums = config.d_head if any(kernel.adds_dq for kernel in kernels) else 0
        after = Sums(sums, config.sum_order, dq=sums > 0)
        steps = (
            prepare_step(problem, target, sum_columns=sums),
            *(
                step
                for kernel in kernels
                for step in self._main_steps(config, problem, kernel, arguments, setting.arch)
            ),
            *sums_steps(problem, target, after),
            *sink_steps(problem, target),
        )

        def resize(other: Problem) -> Resized:
            assert isinstance(other, BackwardProblem)
            check_grid(other)
            main = (_main_grid(config, other, kernel) for kernel in kernels)
            grids = (
                prepared_blocks(other),
                *main,
                *sums_grids(other, after),
                *sink_grids(other),
            )
            return Resized(grids, stat_scratch(other, sum_columns=sums))

        resizes = problem.per_batch and problem.program is None and not problem.idle
        return Recipe(
            kernels[0] if kernels else self.resolve(config, problem.features),
            steps,
            arguments,
            scratch={
                **stat_scratch(problem, sum_columns=sums),
                **_list_scratch(config, problem, kernels),
            },
            resize=resize if resizes else None,
        )

    def _main_steps(
        self,
        config: FlashBackwardKernelConfig,
        problem: BackwardProblem,
        kernel: Sm80BackwardFeatures,
        arguments: BackwardKernelArgs,
        arch: Arch,
    ) -> tuple[Step, ...]:
        """Return a main kernel, and before it those that make its lists. All lists are in the same
        memory, where those of the next kernel replace them."""
        grid = _main_grid(config, problem, kernel)
        geometry = Geometry(grid, config.num_threads, kernel.smem_bytes(config))
        step = Step(self.unit(config, kernel, arch), geometry)
        if not kernel.listed:
            return (step,)
        lists = _lists(config, problem, kernel)
        made = lists.put(arguments, LAYOUT_ASSERTS, config.target(arch))
        return tuple(replace(each, values={"list_stride": lists.stride}) for each in (*made, step))

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


def _lists(
    config: FlashBackwardKernelConfig, problem: BackwardProblem, kernel: Sm80BackwardFeatures
) -> Lists:
    side = "OfQueries" if kernel.owns_queries else "OfKeys"
    return Lists(Listing(side, config.B_c, config.B_r), problem)


def _list_scratch(
    config: FlashBackwardKernelConfig,
    problem: BackwardProblem,
    kernels: Sequence[Sm80BackwardFeatures],
) -> dict[str, int]:
    """Return the bytes of the largest lists."""
    sizes: dict[str, int] = {}
    for kernel in kernels:
        for name, size in _lists(config, problem, kernel).scratch.items() if kernel.listed else ():
            sizes[name] = max(size, sizes.get(name, 0))
    return sizes


SM80_BACKWARD: Sm80Backward = Sm80Backward()
