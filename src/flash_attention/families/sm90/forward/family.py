# SPDX-License-Identifier: Apache-2.0
"""The forward pass of the sm_90 family (H100, H200): TMA, wgmma and warp specialisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.call.tensors import DTYPES, TensorView
from flash_attention.compile.elf import ENTRY
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.block_lists import Listing, Lists
from flash_attention.families.family import Family
from flash_attention.families.fit import MAX_GRID_X
from flash_attention.families.forward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    ForwardKernelArgs,
    forward_args,
)
from flash_attention.families.recipe import Geometry, Recipe, Resize, Resized, Setting, Step
from flash_attention.families.sm90.forward.combine import combining
from flash_attention.families.sm90.forward.config import (
    MOST_GROUP_MIB,
    WARP_ROWS,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)
from flash_attention.families.sm90.forward.decode import (
    Steps,
    choose_splits,
    ctas_on_device,
    on_device,
    without_counter,
)
from flash_attention.families.sm90.forward.features import Sm90Features, Walk, resolve
from flash_attention.families.sm90.forward.fit import check_fits, check_tiles
from flash_attention.families.sm90.forward.heuristic import (
    SHORT,
    group_mib,
    has_empty_consumers,
    heuristic,
)
from flash_attention.families.sm90.forward.space import (
    hopper_combinations,
    hopper_neighbours,
    hopper_search_space,
)
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tensor_maps import (
    describe_all,
    loads_whole_rows,
    of_all_lengths,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.wgmma import E4M3 as E4M3_ELEMENT
from flash_attention.families.sm90.wgmma import from_registers, from_shared
from flash_attention.families.traced_args import layout_asserts, parameter, prelude
from flash_attention.program.nodes import HEAD

MAPS = tuple(f"const __grid_constant__ fa::TensorMap {tensor}_map" for tensor in "qkvo")


class Sm90Forward(Family[HopperForwardKernelConfig]):
    """The sm_90 forward kernels. With split-KV, a second kernel may combine partial results."""

    name = "sm_90"
    config_type = HopperForwardKernelConfig
    drops = True
    has_functions = True
    keeps_max = True
    inputs = (*DTYPES, E4M3)
    kv_inputs = (E4M3,)
    extrapolates = True
    splits_keys = True
    strength = "are made for decoding"

    def resolve(self, config: HopperForwardKernelConfig, features: Features) -> Sm90Features:
        return resolve(config, features)

    def features(
        self,
        config: HopperForwardKernelConfig,
        problem: Problem,
        return_lse: bool = False,
        split: KvSplits | None = None,
    ) -> Sm90Features:
        split = split or without_counter(config, problem)
        return resolve(config, _features(config, problem, split))

    @kept
    def unit(self, config: HopperForwardKernelConfig, features: Features, arch: Arch) -> Unit:
        resolved = resolve(config, features)
        widths = sorted({config.B_c, config.narrow_keys} - {0})
        exact = config.q_8_bit and not resolved.block_descales  # 16 bits hold the elements
        operand = DType.FP16 if exact else config.dtype
        maps = "TensorMaps{q_map, k_map, v_map, o_map}" if config.tma else "NoMaps{}"
        name = config.kernel_name() + resolved.suffix
        source = render(
            entry=f"{ENTRY}_{name}",
            title=config.short_form(),
            header="fa/sm90/forward.cuh",
            bindings=(*config.bindings(), *resolved.bindings(config)),
            wrappers=(
                *(from_shared(E4M3_ELEMENT if config.scores_8_bit else operand, w) for w in widths),
                from_registers(operand, config.d_head),
            ),
            asserts=layout_asserts(ForwardKernelArgs, resolved.program, LAYOUT_ASSERTS),
            bounds=f"{config.num_threads}, {config.side_by_side}",
            prelude=prelude(resolved.program),
            parameters=(
                *(MAPS if config.tma else ()),
                parameter(ForwardKernelArgs, resolved.program, PARAMETER),
            ),
            body=(
                "extern __shared__ __align__(1024) char smem[];",
                f"fa::sm90::forward<Config>(fa::sm90::{maps}, args, smem);",
            ),
        )
        return Unit(name, config.target(arch), source)

    def recipe(
        self,
        config: HopperForwardKernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        setting: Setting,
    ) -> Recipe:
        arch = setting.arch
        split = setting.split or without_counter(config, problem, setting.num_sms)
        if split is not None and split.ctas:  # which depend on the number of sequences
            split = on_device(config, problem, setting.num_sms)
        features = self.features(config, problem, split=split)
        check_fits(config, problem, split)
        walk = features.walk(config.tile_order)
        ctas = _num_ctas(config, problem, walk, split, setting.num_sms)
        maps = describe_all(config, views, features) if config.tma and not problem.idle else {}
        if maps and problem.total_q is not None:
            maps["o"] = of_all_lengths(maps["o"])
        blocks = (0, 0) if split is None else (split.key_blocks, split.blocks)
        arguments = forward_args(problem, views, key_blocks=blocks[0], split_blocks=blocks[1])
        before: tuple[Step, ...] = ()
        scratch: dict[str, int] = {}
        if features.listed and not problem.idle:
            lists = _lists(config, problem, features)
            before = lists.put(arguments, LAYOUT_ASSERTS, config.target(arch))
            scratch = lists.scratch
        main = Step(
            self.unit(config, features, arch),
            Geometry((ctas, 1, 1), config.num_threads, config.smem_bytes()),
            maps,
        )
        resize = None
        if not features.listed:
            resize = _resizing(config, problem, walk, split, setting.num_sms)
        if split is None:
            return Recipe(
                *(features, (*before, main), arguments),
                scratch=scratch,
                main=len(before),
                counts_tiles=walk.counts_tiles and not problem.idle,
                tiles=problem.num_tiles(config.B_r),
                resize=resize,
            )
        most_ctas = config.side_by_side * setting.num_sms  # other lengths may have more
        return Recipe(
            features,
            (*before, main, *self._combining(config, problem, features, split, arch)),
            arguments,
            scratch=scratch | split.scratch(problem, config.consumers),
            main=len(before),
            tiles=(tiles := split.num_tiles(problem, config.consumers)),
            num_splits=ctas if split.is_split else 0,
            arrivals=(most_ctas if split.ctas else tiles) * config.consumers * split.one_launch,
            resize=resize,
        )

    def _combining(
        self,
        config: HopperForwardKernelConfig,
        problem: Problem,
        features: Sm90Features,
        split: KvSplits,
        arch: Arch,
    ) -> tuple[Step, ...]:
        if split.one_launch or not split.is_split:
            return ()
        rows = split.tile_rows(config.consumers)
        return (combining(config, problem, features, rows, arch),)

    def split(self, config: HopperForwardKernelConfig, problem: Problem, keys: int) -> KvSplits:
        return KvSplits.of_keys(problem, config.B_c, keys).with_launches(problem)

    def heuristic(self, problem: Problem, arch: Arch) -> HopperForwardKernelConfig | str:
        return heuristic(problem, arch)

    def why(
        self, config: HopperForwardKernelConfig, problem: Problem, split: KvSplits | None
    ) -> str:
        if split is not None:
            rows = problem.seq_q * problem.heads_per_kv
            if rows > WARPGROUP_ROWS:
                return Steps.CHUNK.value
            return (
                f"{rows} rows that share a head of k and v fit in {WARPGROUP_ROWS}, a warpgroup's"
            )
        length = "up to" if problem.seq_q <= SHORT else "over"
        return f"{super().why(config, problem, split)}, {length} {SHORT} queries"

    def choose_split(
        self, problem: Problem, arch: Arch, num_sms: int, split_keys: int | None
    ) -> tuple[HopperForwardKernelConfig, KvSplits] | str:
        if problem.dropout_p:
            return "kernels that split keys have no dropout"
        if problem.return_max:
            return "kernels that split keys return no maxima"
        return choose_splits(problem, arch, num_sms, split_keys)

    def built_features(self) -> tuple[Features, ...]:
        return PLAIN, CAUSAL

    def search_space(self) -> Iterator[HopperForwardKernelConfig]:
        return hopper_search_space()

    def combinations(self, dtype: DType, d_head: int) -> Iterator[HopperForwardKernelConfig]:
        return hopper_combinations(dtype, d_head)

    def neighbours(self, config: HopperForwardKernelConfig) -> list[HopperForwardKernelConfig]:
        return hopper_neighbours(config)

    def suits(self, config: HopperForwardKernelConfig, problem: Problem) -> bool:
        """Whether a config is worth a measurement.

        Causal tiles differ in length, and a static tile order then leaves a third of the GPU idle.
        Without a mask the heuristic alone knows where a narrow block pays. One consumer is for
        few queries and for two CTAs per multiprocessor. Consumers are skipped only where the last
        tile has some without a query.
        """
        if config.skip_empty and not has_empty_consumers(problem.seq_q, config.consumers):
            return False
        if config.consumers == 1 and (problem.seq_q > SHORT or config.side_by_side == 1):
            return False
        if problem.causal:
            return config.tile_order is TileOrder.DYNAMIC
        return config.narrow_keys == 0

    def fitted(
        self,
        config: HopperForwardKernelConfig,
        problem: Problem,
        source: Problem | None = None,
    ) -> HopperForwardKernelConfig:
        """Return the config with group_mib scaled to the K and V of the problem."""
        if config.tile_order is not TileOrder.DYNAMIC:
            return config
        size = group_mib(problem)
        if source is not None:
            size = min(max(config.group_mib * size // group_mib(source), 1), MOST_GROUP_MIB)
        return replace(config, group_mib=size)


def _resizing(
    config: HopperForwardKernelConfig,
    problem: Problem,
    walk: Walk,
    split: KvSplits | None,
    num_sms: int,
) -> Resize | None:
    """Return what resizes the recipe of a problem whose sequences differ in length, unless the
    host splits its keys. Many tiles of 8 bits may suit FP8 kernels with other lengths. One config
    that is batch-invariant serves all lengths."""
    if problem.idle or not problem.per_batch or (split is not None and not split.ctas):
        return None
    serves_all = problem.batch_invariant
    kind, is_short = Steps.of(problem, num_sms), problem.seq_q <= SHORT
    if problem.dtype == E4M3 and kind is Steps.MANY_TILES and not serves_all:
        return None
    rows = config.B_r
    few = WARPGROUP_ROWS // problem.heads_per_kv  # queries of decoding
    least = 1 if walk is Walk.PACKED else 0
    most = MAX_GRID_X if walk is Walk.ONE_EACH else num_sms * config.side_by_side
    known: dict[tuple[bool, int], Resized] = {}  # splits by what they depend on

    def resize(other: Problem) -> Resized | None:
        is_kind = other.seq_q <= few if kind is Steps.DECODE else Steps.of(other, num_sms) is kind
        if not (serves_all or (is_kind and (other.seq_q <= SHORT) is is_short)):
            return None
        if split is not None:
            key = other.batch == 1, min(other.seq_q, rows)
            if key not in known:
                own = replace(split, ctas=ctas_on_device(config, other, num_sms))
                sizes = own.scratch(other, config.consumers)
                known[key] = Resized(((own.ctas, 1, 1),), sizes)
            return known[key]
        tiles = other.num_tiles(rows)
        if tiles > MAX_GRID_X:
            check_tiles(config, other)
        return Resized(((min(max(tiles, least), most), 1, 1),))

    return resize


def _features(
    config: HopperForwardKernelConfig, problem: Problem, split: KvSplits | None
) -> Sm90Features:
    """Return the features of a problem, and how many heads share a tile.

    If sequences differ in length, heads that share a head of k and v share a tile, so that fewer
    rows are unused. The rows of a warp are whole queries.
    """
    asked = problem.features
    own = Sm90Features(
        *(asked.mask, asked.softcap, asked.per_batch, asked.page_keys, asked.sinks),
        block_descales=asked.block_descales,
        dropout=asked.dropout,
        program=asked.program,
        listed=problem.has_mask_function,
        max_score=asked.max_score,
        whole_rows=loads_whole_rows(config, problem),
    )
    if split is not None:
        return replace(
            own,
            listed=_shares_lists(problem),
            heads_together=split.heads_together,
            decode=True,
            splits=split.kind,
            one_launch=split.one_launch,
        )
    group = problem.heads_per_kv
    together = problem.per_batch and config.specialised and WARP_ROWS % group == 0
    # The rows of a tile are those of one head.
    one_head = asked.dropout or asked.max_score or asked.program is not None
    together = together and not one_head
    return replace(own, heads_together=group) if together else own


def _shares_lists(problem: Problem) -> bool:
    """Whether all heads visit the same blocks of lists."""
    program = problem.program
    return program is not None and program.mask is not None and not program.mask_depends & HEAD


def _lists(config: HopperForwardKernelConfig, problem: Problem, features: Sm90Features) -> Lists:
    queries = features.queries_of(config.B_r)
    listing = Listing("OfQueries", queries, config.B_c, config.consumers, config.narrow_keys)
    return Lists(listing, problem)


def _num_ctas(
    config: HopperForwardKernelConfig,
    problem: Problem,
    walk: Walk,
    split: KvSplits | None,
    num_sms: int,
) -> int:
    """Count the CTAs: one per tile or split, or as many as are resident if they are persistent."""
    if split is not None:
        return split.num_ctas(problem, config.consumers)
    tiles = problem.num_tiles(config.B_r)
    if walk is Walk.ONE_EACH:
        return tiles
    least = 1 if walk is Walk.PACKED else 0  # packed sequences may have no tile at all
    return min(max(tiles, least), num_sms * config.side_by_side)


SM90: Sm90Forward = Sm90Forward()
