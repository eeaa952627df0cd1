# SPDX-License-Identifier: Apache-2.0
"""Sm90Backward: all about the Hopper backward kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.binding import Number
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.errors import UnsupportedError
from flash_attention.families.backward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    VIEWS,
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
    split_scratch,
    stat_scratch,
    sums_grids,
    sums_steps,
)
from flash_attention.families.block_lists import Listing, Lists
from flash_attention.families.family import Family
from flash_attention.families.fit import check_columns, check_dtype
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Geometry, Grid, Recipe, Resize, Resized, Setting, Step
from flash_attention.families.sm90.backward.bias import bias_bytes, loads_bias
from flash_attention.families.sm90.backward.bias_gradient import (
    TILE_SUMS,
    TILES,
    key_parts,
    stores_tiles,
    sum_step,
    tiles_of_bias,
)
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.features import (
    Sm90BackwardFeatures,
    feature_bindings,
    resolve,
)
from flash_attention.families.sm90.backward.head_splits import head_splits, num_key_sums
from flash_attention.families.sm90.backward.heuristic import chooses, heuristic, why_not
from flash_attention.families.sm90.backward.parts import Part, Parts, all_work, split_work
from flash_attention.families.sm90.backward.queries import Product, query_step
from flash_attention.families.sm90.backward.slots import (
    Derivative,
    QueryGradient,
    TileOrder,
)
from flash_attention.families.sm90.backward.space import (
    backward_neighbours,
    backward_search_space,
)
from flash_attention.families.sm90.backward.tensor_maps import describe_all, maps_of
from flash_attention.families.sm90.wgmma import (
    both_shared,
    from_registers,
    from_registers_by_rows,
)
from flash_attention.families.traced_args import layout_asserts, parameter, prelude

SUM_ORDER = "ByLane"  # of dq_sum


class Sm90Backward(Family[HopperBackwardKernelConfig]):
    """The sm_90 backward kernels."""

    name = "sm_90"
    pass_ = Pass.BACKWARD
    config_type = HopperBackwardKernelConfig
    drops = True
    has_functions = True
    gathers = True
    extrapolates = True

    def resolve(self, config: HopperBackwardKernelConfig, features: Features) -> Features:
        return resolve(features)

    @kept
    def unit(self, config: HopperBackwardKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = resolve(features)
        mapped = maps_of(config, resolved)
        kernel = "split" if config.is_split else "backward"
        call = f"fa::sm90::backward::{kernel}<Config>("
        name = config.kernel_name() + resolved.suffix
        source = render(
            entry=f"{ENTRY}_{name}",
            title=config.short_form(),
            header=f"fa/sm90/backward/{kernel}.cuh",
            bindings=(
                *config.bindings(),
                *feature_bindings(resolved),
                Number("bias_bytes", bias_bytes(config) if resolved.bias else 0),
                Number("adds_heads", int(resolved.splits_heads and config.adds_dq)),
                Number("shrinking_tiles", int(_shrinks(config, resolved))),
            ),
            wrappers=_wrappers(config),
            asserts=layout_asserts(BackwardKernelArgs, resolved.program, LAYOUT_ASSERTS),
            prelude=prelude(resolved.program, bias=resolved.bias),
            bounds=f"{config.num_threads}, 1",
            parameters=(
                *(f"const __grid_constant__ fa::TensorMap {name}_map" for name in mapped),
                parameter(BackwardKernelArgs, resolved.program, PARAMETER),
            ),
            body=(
                "extern __shared__ __align__(1024) char smem[];",
                f"{call}{{{_maps(mapped)}}},",
                f"{' ' * len(call)}args, smem);",
            ),
        )
        return Unit(name, config.target(arch), source)

    def recipe(
        self,
        config: HopperBackwardKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        assert isinstance(problem, BackwardProblem)
        _check_fits(config, problem)
        target = config.target(setting.arch)
        arguments = backward_args(problem, views)
        if problem.idle:
            return Recipe(resolve(problem.features), (prepare_step(problem, target),), arguments)
        stores_ds = config.query_gradient is QueryGradient.WORKSPACE
        sums_tiles = TILE_SUMS in tiles_of_bias(problem.program)
        work = _work(problem, setting.workspace_bytes, stores_ds=stores_ds, sums_tiles=sums_tiles)
        arguments.head_splits = splits = _head_splits(config, problem, work, setting)
        key_sums = num_key_sums(config, splits)
        arguments.key_sums = max(1, key_sums)
        lists = _lists(config, problem)
        features = _features(config, problem, splits, lists)
        turns = config.orders_dq
        sums = problem.wanted.dq and not turns and not (stores_ds and not work.of_keys)
        columns = config.d_head if sums else 0
        named = dict(zip(VIEWS, views, strict=True))
        unit = self.unit(config, features, setting.arch)
        steps = [] if lists is None else list(lists.put(arguments, LAYOUT_ASSERTS, target))
        key_columns = config.d_head if key_sums and config.adds_dq else 0
        cleared = {"sum_columns": columns, "key_sum_columns": key_columns}
        steps.append(prepare_step(problem, target, orders_dq=turns, **cleared))
        for part in work.parts:
            grid = _grid(config, part, splits, setting)
            geometry = Geometry(grid, config.num_threads, features.smem_bytes(config))
            maps = describe_all(config, features, named, problem, part.part_keys)
            values = part.values if work.workspace_bytes else {}  # else it has all of the work
            steps.append(Step(unit, geometry, maps, starts_early=True, values=values))
            if stores_ds:
                product = Product(config.dtype, config.d_head, max(1, config.group_heads))
                steps.append(query_step(product, problem, features, part, named, adds=sums))
            if sums_tiles:
                steps.append(sum_step(problem, part, target))
        steps += sums_steps(problem, target, _sums(config, dq=sums, splits=splits))
        kept_columns = config.d_head if turns else columns
        own = not stores_ds and problem.per_batch and problem.program is None
        return Recipe(
            features,
            (*steps, *sink_steps(problem, target)),
            arguments,
            scratch={
                **stat_scratch(problem, sum_columns=kept_columns, orders_dq=turns),
                **({"ds": work.workspace_bytes} if work.workspace_bytes else {}),
                **split_scratch(problem, config.d_head, key_sums),
                **({} if lists is None else lists.scratch),
            },
            counts_tiles=config.tile_order is TileOrder.DYNAMIC,
            tiles=sum(_num_tiles(config, part, splits) for part in work.parts),
            resize=_resizing(config, problem, splits, setting) if own else None,
        )

    def heuristic(self, problem: Problem, arch: Arch) -> HopperBackwardKernelConfig | str:
        assert isinstance(problem, BackwardProblem)
        return heuristic(problem, arch)

    def built_features(self) -> tuple[Features, ...]:
        split = (replace(resolve(each), splits_heads=True) for each in (PLAIN, CAUSAL))
        return PLAIN, CAUSAL, *split

    def companions(self, config: HopperBackwardKernelConfig, arch: Arch) -> list[Unit]:
        """Return the kernels before and after one that splits heads, for dense tensors."""
        sizes, dtype = (1, 1, 1, 1, 1, config.d_head, config.d_head), config.dtype.to_torch_dtype()
        problem = BackwardProblem(*sizes, dtype, 1.0)
        sums, target = _sums(config, dq=config.adds_dq, splits=2), config.target(arch)
        steps = sums_steps(problem, target, sums)
        if config.adds_dq:
            columns = config.d_head
            steps += (prepare_step(problem, target, sum_columns=columns, key_sum_columns=columns),)
        return [step.unit for step in steps]

    def stores_tiles(self, problem: Problem, config: HopperBackwardKernelConfig | None) -> bool:
        return isinstance(problem, BackwardProblem) and stores_tiles(problem, config)

    def search_space(self) -> Iterator[HopperBackwardKernelConfig]:
        return backward_search_space()

    def neighbours(self, config: HopperBackwardKernelConfig) -> list[HopperBackwardKernelConfig]:
        return backward_neighbours(config)

    def suits(self, config: HopperBackwardKernelConfig, problem: Problem) -> bool:
        """Whether a config computes what is wanted, in a fixed order if that is asked for."""
        return isinstance(problem, BackwardProblem) and _mismatch(config, problem) is None


def _shrinks(config: HopperBackwardKernelConfig, features: Features) -> bool:
    """Whether the short tiles of a causal mask come last."""
    return config.fills_gaps and features.mask is MaskKind.CAUSAL


def _resizing(
    config: HopperBackwardKernelConfig, problem: BackwardProblem, splits: int, setting: Setting
) -> Resize:
    """Return what resizes the recipe of a config that stores no dS. The heuristic's choice stays
    its choice."""
    turns = config.orders_dq
    chosen = chooses(config, problem)

    def resize(other: Problem) -> Resized | None:
        assert isinstance(other, BackwardProblem)
        if chosen and not chooses(config, other):
            return None
        work = all_work(other)
        if _head_splits(config, other, work, setting) != splits:
            return None
        (part,) = work.parts
        columns = config.d_head if other.wanted.dq else 0
        main = _grid(config, part, splits, setting)
        after = _sums(config, dq=columns > 0 and not turns, splits=splits)
        return Resized(
            (prepared_blocks(other), main, *sums_grids(other, after), *sink_grids(other)),
            {
                **stat_scratch(other, sum_columns=columns, orders_dq=turns),
                **split_scratch(other, config.d_head, num_key_sums(config, splits)),
            },
        )

    return resize


def _work(problem: BackwardProblem, most_bytes: int, *, stores_ds: bool, sums_tiles: bool) -> Parts:
    """Return the parts of the work, which share a workspace if there are several."""
    if sums_tiles:
        return key_parts(problem, most_bytes)
    return split_work(problem, most_bytes) if stores_ds else all_work(problem)


def _features(
    config: HopperBackwardKernelConfig, problem: BackwardProblem, splits: int, lists: Lists | None
) -> Sm90BackwardFeatures:
    return replace(
        resolve(problem.features),
        splits_heads=splits > 1,
        listed=lists is not None,
        skips_dk=not problem.wanted.dk,
        skips_dv=not problem.wanted.dv,
        bias=loads_bias(config, problem),
    )


def _sums(config: HopperBackwardKernelConfig, *, dq: bool, splits: int) -> Sums:
    return Sums(config.d_head, SUM_ORDER, dq=dq, splits=splits > 1)


def _lists(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> Lists | None:
    """Return the lists of a problem with a mask function, if kernels of a config have some. Tiles
    that take turns visit every block, and so do those whose heads would have different lists."""
    if not problem.has_mask_function:
        return None
    if config.query_gradient not in (QueryGradient.OWN_WARPGROUP, QueryGradient.NONE):
        return None
    lists = Lists(Listing("OfKeys", config.B_c, config.B_r), problem)
    return None if lists.heads > 1 and problem.heads_per_kv > 1 else lists


def _head_splits(
    config: HopperBackwardKernelConfig, problem: BackwardProblem, work: Parts, setting: Setting
) -> int:
    if not (problem.wanted.dk and problem.wanted.dv):
        return 1  # what adds splits up has both
    return head_splits(problem, config, work, setting.num_sms, setting.workspace_bytes)


def _num_tiles(config: HopperBackwardKernelConfig, part: Part, splits: int) -> int:
    return part.part_heads * splits * -(-part.part_keys // config.B_c)


def _grid(config: HopperBackwardKernelConfig, part: Part, splits: int, setting: Setting) -> Grid:
    """Return one CTA per tile of a part, or as many as are resident if they are persistent."""
    tiles = _num_tiles(config, part, splits)
    dynamic = config.tile_order is TileOrder.DYNAMIC
    return min(tiles, setting.num_sms) if dynamic else tiles, 1, 1


def _maps(mapped: Sequence[str]) -> str:
    """Return the members of TensorMaps. That of dq is a pointer, null if there is none. Nobody
    reads those of dk and dv where they are not wanted."""
    dq = "&dq_map" if "dq" in mapped else "nullptr"
    dk, dv = ("dk_map" if "dk" in mapped else "k_map"), ("dv_map" if "dv" in mapped else "v_map")
    bias = ", &bias_map" if "bias" in mapped else ""
    if tiles := {TILES, TILE_SUMS} & {*mapped}:
        bias = f"{bias or ', nullptr'}, &{tiles.pop()}_map"
    return f"q_map, k_map, v_map, d_o_map, {dq}, {dk}, {dv}{bias}"


def _wrappers(config: HopperBackwardKernelConfig) -> tuple[str, ...]:
    """Return the products of a kernel: S and dP, dK and dV, and dQ."""
    scores = both_shared(config.dtype, config.B_r, a_along_rows=False, b_along_width=False)
    if config.is_split:
        return (
            scores,
            from_registers_by_rows(config.dtype, config.B_r),
            both_shared(config.dtype, config.d_head, a_along_rows=False, b_along_width=True),
        )
    if config.k_in_registers:
        scores += "\n" + from_registers_by_rows(config.dtype, config.B_r)
    gradients = from_registers(config.dtype, config.d_head)
    if config.query_gradient in (QueryGradient.NONE, QueryGradient.WORKSPACE):
        return scores, gradients
    queries = both_shared(config.dtype, config.pass_columns, a_along_rows=False, b_along_width=True)
    return scores, gradients, queries


def _check_fits(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> None:
    """Raise UnsupportedError unless kernels of the config can run the problem."""
    check_dtype(config, problem)
    check_columns(config, problem)
    if why := why_not(problem):
        raise UnsupportedError(f"{why}; pass a FlashBackwardKernelConfig, or leave config out")
    if message := _mismatch(config, problem):
        raise UnsupportedError(message)


def _mismatch(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> str | None:
    """Say why dq of a config is not what a problem asks for, or return None if it is."""
    if problem.deterministic and config.adds_dq:
        return (
            "deterministic=True is asked for, and the kernel config adds dq up in any order;"
            " pass a config with query_gradient=QueryGradient.ORDERED or WORKSPACE, or leave config"
            " out"
        )
    if problem.program is not None and problem.program.by_tiles and not config.own_warpgroup:
        return (
            "the gradient of a bias leaves as tiles of dS, and the kernel config has"
            f" query_gradient=QueryGradient.{config.query_gradient.name}; pass a config with"
            " OWN_WARPGROUP or ORDERED, or leave config out"
        )
    if problem.gathers_by_lanes and config.derivative is Derivative.PAIRS:
        return (
            "the gradient of a captured tensor is wanted, and the kernel config has"
            " derivative=Derivative.PAIRS, which has no dS in float32; pass a config with EXACT or"
            " ROUNDED, or leave config out"
        )
    if problem.wanted.dq == (config.query_gradient is QueryGradient.NONE):
        return (
            f"dq is {'' if problem.wanted.dq else 'not '}wanted, and the kernel config has"
            f" query_gradient=QueryGradient.{config.query_gradient.name}; NONE is for calls that do"
            " not want dq, and the others for calls that do"
        )
    return None


SM90_BACKWARD: Sm90Backward = Sm90Backward()
