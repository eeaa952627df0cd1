# SPDX-License-Identifier: Apache-2.0
"""The sm_80 family, forward: cp.async, ldmatrix and mma.sync; runs on Ampere and newer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.elf import ENTRY
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.errors import UnsupportedError
from flash_attention.families.block_lists import Listing, Lists
from flash_attention.families.family import Family
from flash_attention.families.fit import check_columns, check_dtype, check_grid
from flash_attention.families.forward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    ForwardKernelArgs,
    forward_args,
)
from flash_attention.families.recipe import (
    AnyKvSplits,
    Geometry,
    Grid,
    Recipe,
    Resized,
    Setting,
    Step,
)
from flash_attention.families.sm80.forward import features as own_features
from flash_attention.families.sm80.forward import space
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm80.forward.heuristic import FEW_ROWS, heuristic
from flash_attention.families.traced_args import layout_asserts, parameter, prelude
from flash_attention.families.values import Violation


class Sm80Forward(Family[FlashForwardKernelConfig]):
    """Grids of (query blocks, heads, batch); every kernel is one launch."""

    name = "sm_80"
    config_type = FlashForwardKernelConfig
    drops = True
    has_functions = True
    keeps_max = True

    def resolve(
        self, config: FlashForwardKernelConfig, features: Features
    ) -> own_features.Sm80Features:
        return own_features.resolve(features)

    def features(
        self,
        config: FlashForwardKernelConfig,
        problem: Problem,
        return_lse: bool = False,
        split: AnyKvSplits = None,
    ) -> own_features.Sm80Features:
        return own_features.features_of(config, problem, return_lse)

    @kept
    def unit(self, config: FlashForwardKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = self.resolve(config, features)
        name = config.kernel_name() + resolved.suffix
        source = render(
            entry=f"{ENTRY}_{name}",
            title=config.short_form(),
            header="fa/sm80/forward.cuh",
            bindings=(*config.bindings(), *resolved.bindings()),
            asserts=layout_asserts(ForwardKernelArgs, resolved.program, LAYOUT_ASSERTS),
            bounds=f"{config.num_threads}",
            prelude=prelude(resolved.program),
            parameters=(parameter(ForwardKernelArgs, resolved.program, PARAMETER),),
            body=(
                "extern __shared__ __align__(1024) char smem[];",
                "fa::sm80::forward<Config>(args, smem);",
            ),
        )
        return Unit(name, config.target(arch), source)

    def recipe(
        self,
        config: FlashForwardKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        _check_fits(config, problem, views)
        features = self.features(config, problem, setting.return_lse)
        grid = _grid(config, problem)
        geometry = Geometry(grid, config.num_threads, config.smem_bytes())
        step = Step(self.unit(config, features, setting.arch), geometry)
        arguments = forward_args(problem, views)
        lists = None
        before: tuple[Step, ...] = ()
        if features.listed:
            lists = Lists(Listing("OfQueries", config.B_r, config.B_c), problem)
            before = lists.put(arguments, LAYOUT_ASSERTS, config.target(setting.arch))

        def resize(other: Problem) -> Resized | None:
            alike = (other.seq_q <= FEW_ROWS) is (problem.seq_q <= FEW_ROWS)
            if not (alike or problem.batch_invariant):
                return None
            check_grid(other)
            return Resized((_grid(config, other),))

        resizes = problem.total_q is not None and problem.program is None and not problem.idle
        return Recipe(
            *(features, (*before, step), arguments),
            scratch={} if lists is None else lists.scratch,
            main=len(before),
            tiles=prod(grid),
            resize=resize if resizes else None,
        )

    def heuristic(self, problem: Problem, arch: Arch) -> FlashForwardKernelConfig | str:
        return heuristic(problem, arch)

    def search_space(self) -> Iterator[FlashForwardKernelConfig]:
        return space.search_space()

    def combinations(
        self, dtype: DType, d_head: int
    ) -> Iterator[FlashForwardKernelConfig | Violation]:
        return space.combinations(dtype, d_head)

    def likeliest_first(
        self, first: FlashForwardKernelConfig, configs: Iterable[FlashForwardKernelConfig]
    ) -> list[FlashForwardKernelConfig]:
        return space.likeliest_first(first, configs)

    def neighbours(self, config: FlashForwardKernelConfig) -> list[FlashForwardKernelConfig]:
        return space.neighbours(config)


def _grid(config: FlashForwardKernelConfig, problem: Problem) -> Grid:
    q_blocks = max(1, -(-problem.seq_q // config.B_r))  # an empty grid cannot be launched
    return q_blocks, problem.heads, problem.batch


def _check_fits(
    config: FlashForwardKernelConfig, problem: Problem, views: Sequence[TensorView]
) -> None:
    check_dtype(config, problem)
    check_columns(config, problem)
    check_grid(problem)
    row_stride = config.static_row_stride
    for view in views if row_stride else ():
        if view.strides[1] != row_stride:
            raise UnsupportedError(
                f"the kernel config has rows {row_stride} elements apart (static_row_stride), the"
                f" rows of {view.name} are {view.strides[1]} apart; pass tensors with that row"
                " stride, o included, or a config with static_row_stride = 0"
            )


SM80: Sm80Forward = Sm80Forward()
