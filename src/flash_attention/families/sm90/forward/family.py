# SPDX-License-Identifier: Apache-2.0
"""The forward pass of the sm_90 family (H100, H200): TMA, wgmma and warp specialisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.call.tensors import DTYPES, TensorView
from flash_attention.compile.elf import ENTRY
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.block_lists import Listing, Lists
from flash_attention.families.family import Family
from flash_attention.families.forward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    ForwardKernelArgs,
    forward_args,
)
from flash_attention.families.recipe import Geometry, Recipe, Setting, Step
from flash_attention.families.sm90.forward.bias import describe_bias, loads_bias
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
    on_device,
    without_counter,
)
from flash_attention.families.sm90.forward.features import Sm90Features, Walk, resolve
from flash_attention.families.sm90.forward.fit import check_fits
from flash_attention.families.sm90.forward.heuristic import (
    counts_waves,
    group_mib,
    has_empty_consumers,
    heuristic,
)
from flash_attention.families.sm90.forward.mixed import few_queries
from flash_attention.families.sm90.forward.resizing import resizing
from flash_attention.families.sm90.forward.room import has_room
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
from flash_attention.families.sm90.forward.tiles import (
    LONGEST,
    SHORT,
    num_tiles,
    padded,
    shares_tiles,
)
from flash_attention.families.sm90.wgmma import E4M3 as E4M3_ELEMENT
from flash_attention.families.sm90.wgmma import from_registers, from_shared
from flash_attention.families.traced_args import layout_asserts, parameter, prelude
from flash_attention.program.nodes import HEAD
from flash_attention.program.trend import falls_with_distance

MORE_PADDING = 1.02
_MAP = "const __grid_constant__ fa::TensorMap {}_map"
MAPS = tuple(map(_MAP.format, "qkvo"))
BIAS_MAP = _MAP.format("bias")


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
        if resolved.bias:
            maps = "BiasedMaps{{q_map, k_map, v_map, o_map}, bias_map}"
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
            prelude=prelude(resolved.program, bias=resolved.bias),
            parameters=(
                *(MAPS if config.tma else ()),
                *((BIAS_MAP,) if resolved.bias else ()),
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
        if maps and features.bias:
            maps["bias"] = describe_bias(problem, config.B_r)
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
            Geometry((ctas, 1, 1), config.num_threads, features.smem_bytes(config)),
            maps,
        )
        resize = None
        if not features.listed:
            resize = resizing(config, problem, walk, split, setting.num_sms)
        if split is None:
            return Recipe(
                *(features, (*before, main), arguments),
                scratch=scratch,
                main=len(before),
                counts_tiles=walk.counts_tiles and not problem.idle,
                tiles=num_tiles(problem, config.B_r),
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
        return (combining(config, problem, features, rows, arch, split.most_partials),)

    def split(self, config: HopperForwardKernelConfig, problem: Problem, keys: int) -> KvSplits:
        return KvSplits.of_keys(problem, config.B_c, keys).with_launches(problem)

    def heuristic(self, problem: Problem, arch: Arch) -> HopperForwardKernelConfig | str:
        return heuristic(problem, arch)

    def why(
        self, config: HopperForwardKernelConfig, problem: Problem, split: KvSplits | None
    ) -> str:
        if problem.most_queries:
            return "the step may have prompts beside sequences that decode"
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

    def few_queries(self, problem: Problem, mixed: bool | None = None) -> int:
        return few_queries(problem, mixed)

    def reaches(self, config: HopperForwardKernelConfig, problem: Problem, arch: Arch) -> bool:
        """Whether tiles are as high as the heuristic's, where it counts their waves, and of short
        sequences no more rows and keys are beyond the last."""
        own = heuristic(problem, arch)
        if isinstance(own, str):
            return True
        if counts_waves(problem) and config.consumers != own.consumers:
            return False
        if problem.seq_q > LONGEST:
            return True
        return padded(problem, config) <= MORE_PADDING * padded(problem, own)

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

    def has_room(self, config: HopperForwardKernelConfig, problem: Problem) -> bool:
        return has_room(config, problem)

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


def _features(
    config: HopperForwardKernelConfig, problem: Problem, split: KvSplits | None
) -> Sm90Features:
    """Return the features of a problem, and how many heads share a tile.

    If sequences differ in length or are short, heads that share a head of k and v share a tile, so
    that fewer rows are unused. The rows of a warp are whole queries, unless O is stored from
    registers.
    """
    asked = problem.features
    own = Sm90Features(
        *(asked.mask, asked.softcap, asked.per_batch, asked.page_keys, asked.sinks),
        block_descales=asked.block_descales,
        dropout=asked.dropout,
        program=asked.program,
        listed=problem.has_mask_function,
        max_score=asked.max_score,
        least_queries=asked.least_queries,
        most_queries=asked.most_queries,
        whole_rows=loads_whole_rows(config, problem),
        nearest_first=split is None and _visits_nearest_first(config, problem),
        bias=split is None and loads_bias(config, problem),
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
    group = max(problem.heads_per_kv, 1)
    whole = WARP_ROWS % group == 0 or (config.direct_output and group <= WARPGROUP_ROWS)
    shares = problem.per_batch or (shares_tiles(problem) and not config.skip_empty)
    together = shares and config.specialised and whole
    # The rows of a tile are those of one head.
    one_head = asked.dropout or asked.max_score or asked.program is not None
    together = together and not one_head
    return replace(own, heads_together=group) if together else own


def _visits_nearest_first(config: HopperForwardKernelConfig, problem: Problem) -> bool:
    """Whether tiles without lists begin at the keys that are nearest to their queries. The last
    block of a sequence of its own length has to come first."""
    program = problem.program
    if program is None or program.mask is not None or problem.features.mask is not MaskKind.FULL:
        return False
    plain = config.specialised and not (problem.per_batch or problem.kv_8_bit)
    return plain and falls_with_distance(program)


def _shares_lists(problem: Problem) -> bool:
    """Whether all heads visit the same blocks of lists."""
    program = problem.program
    return program is not None and program.mask is not None and not program.mask_depends & HEAD


def _lists(config: HopperForwardKernelConfig, problem: Problem, features: Sm90Features) -> Lists:
    assert features.program is not None
    listing = Listing(
        "OfQueries",
        features.queries_of(config.B_r),
        config.B_c,
        config.consumers,
        config.narrow_keys,
        nearest_first=falls_with_distance(features.program),
    )
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
    tiles = num_tiles(problem, config.B_r)
    if walk is Walk.ONE_EACH:
        return tiles
    least = 1 if walk is Walk.PACKED else 0  # packed sequences may have no tile at all
    return min(max(tiles, least), num_sms * config.side_by_side)


SM90: Sm90Forward = Sm90Forward()
