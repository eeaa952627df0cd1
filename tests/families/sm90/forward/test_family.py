# SPDX-License-Identifier: Apache-2.0
"""How the Hopper family answers: its grids, the kernels of a recipe, and the text it compiles."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.compile import ENTRY, compile_kernel
from flash_attention.errors import CompileError, UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.forward.family import SM90
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.sm90.forward.heuristic import group_mib
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tiles import SHORT
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from tests.families.problems import recipe_of

HOPPER = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 2, tma=True, specialised=True)
DYNAMIC = replace(HOPPER, tile_order=TileOrder.DYNAMIC, group_mib=64)
BLOCKS_OF_64 = replace(HOPPER, B_c=64)
UNIFIED = HopperForwardKernelConfig(DType.BF16, 96, 2, 80, 1)
NARROW = replace(UNIFIED, dtype=DType.FP16, tma=True, specialised=True, narrow_keys=48)
PROBLEM = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=2,
    d_head=128,
    d_v=128,
    dtype=torch.float16,
    softmax_scale=128**-0.5,
)
DECODE = replace(PROBLEM, seq_q=2)


def grid(config: HopperForwardKernelConfig, problem: Problem, num_sms: int) -> tuple[int, int, int]:
    return recipe_of(config, problem, num_sms=num_sms).steps[0].geometry.grid


@pytest.mark.parametrize(
    ("consumers", "seq_q", "tiles"), [(2, 192, 60), (2, 128, 30), (1, 1, 30), (3, 193, 60)]
)
def test_a_grid_is_flat_and_covers_the_last_rows(consumers: int, seq_q: int, tiles: int) -> None:
    config = replace(BLOCKS_OF_64, consumers=consumers)
    recipe = recipe_of(config, replace(PROBLEM, seq_q=seq_q))
    (step,) = recipe.steps
    assert step.geometry.grid == (tiles, 1, 1)
    assert step.geometry.block == 128 * (consumers + 1)
    assert step.geometry.smem_bytes == config.smem_bytes()
    assert (recipe.tiles, recipe.num_splits) == (tiles, 0)


def in_order(config: HopperForwardKernelConfig, order: TileOrder) -> HopperForwardKernelConfig:
    return replace(config, tile_order=order, group_mib=64 * (order is TileOrder.DYNAMIC))


@pytest.mark.parametrize("order", [TileOrder.PERSISTENT, TileOrder.DYNAMIC])
@pytest.mark.parametrize(("num_sms", "ctas"), [(132, 60), (60, 60), (59, 59), (2, 2)])
def test_persistent_ctas_are_as_many_as_the_device_holds(
    order: TileOrder, num_sms: int, ctas: int
) -> None:
    assert grid(in_order(HOPPER, order), PROBLEM, num_sms) == (ctas, 1, 1)


@pytest.mark.parametrize("order", [TileOrder.PERSISTENT, TileOrder.DYNAMIC])
@pytest.mark.parametrize(("keys", "ctas"), [(64, 20), (112, 10)])
def test_two_ctas_of_one_consumer_share_a_multiprocessor_if_they_fit(
    order: TileOrder, keys: int, ctas: int
) -> None:
    config = in_order(replace(HOPPER, consumers=1, B_c=keys), order)
    assert config.broken_rule() is None
    assert grid(config, PROBLEM, num_sms=10) == (ctas, 1, 1)
    if order is TileOrder.DYNAMIC:
        packed = replace(PROBLEM, total_q=1000)
        assert grid(config, packed, num_sms=10) == (ctas, 1, 1)


@pytest.mark.parametrize(("seq_q", "ctas"), [(192, 59), (1, 30), (0, 1)])
def test_entries_of_their_own_lengths_are_walked_by_resident_ctas(seq_q: int, ctas: int) -> None:
    problem = replace(PROBLEM, seq_q=seq_q, total_q=1000)
    assert grid(DYNAMIC, problem, num_sms=59) == (ctas, 1, 1)


@pytest.mark.parametrize(
    "change", [{"total_q": 900}, {"total_k": 900}, {"seqused_k": True}], ids=str
)
def test_entries_of_their_own_lengths_have_a_counter_or_splits_on_the_device(
    change: dict[str, Any],
) -> None:
    problem = replace(PROBLEM, **change)
    in_turn = in_order(HOPPER, TileOrder.PERSISTENT)
    with pytest.raises(UnsupportedError, match=r"tile_order=TileOrder.PERSISTENT: pass one with"):
        recipe_of(in_turn, problem)
    assert recipe_of(DYNAMIC, problem).counts_tiles
    features = recipe_of(in_order(HOPPER, TileOrder.ONE_EACH), problem).features
    assert isinstance(features, Sm90Features)
    assert features.splits is SplitKind.ON_DEVICE


@pytest.mark.parametrize(
    ("config", "idle", "counts"),
    [
        (HOPPER, False, False),
        (in_order(HOPPER, TileOrder.PERSISTENT), False, False),
        (DYNAMIC, False, True),
        (DYNAMIC, True, False),
    ],
)
def test_tiles_are_counted_where_a_counter_hands_them_out(
    config: HopperForwardKernelConfig, idle: bool, counts: bool
) -> None:
    recipe = recipe_of(config, replace(PROBLEM, seq_k=0) if idle else PROBLEM)
    assert recipe.counts_tiles == counts
    assert list(recipe.steps[0].maps) == ([] if idle else ["q", "k", "v", "o"])


def test_few_parts_are_combined_by_the_last_cta_of_a_tile() -> None:
    split = SM90.split(BLOCKS_OF_64, DECODE, 128)
    assert split.one_launch
    recipe = recipe_of(BLOCKS_OF_64, DECODE, split=split)
    (main,) = recipe.steps
    assert "using Output = fa::sm90::output::Combined;" in main.unit.source
    assert (recipe.tiles, recipe.arrivals, recipe.counters) == (10, 20, 20)  # of two consumers
    assert recipe.scratch == {"o_partial": 40 * 6 * 128 * 4, "lse_partial": 40 * 6 * 4}


@pytest.mark.usefixtures("two_launches")
def test_split_keys_make_two_kernels_and_the_parts_between_them() -> None:
    split = SM90.split(BLOCKS_OF_64, DECODE, 128)
    assert split == KvSplits(SplitKind.FIXED, blocks=2, key_blocks=8, heads_together=3)
    recipe = recipe_of(BLOCKS_OF_64, DECODE, split=split)
    main, combine = recipe.steps
    assert (main.geometry.grid, main.starts_early) == ((10 * 4, 1, 1), False)
    assert (combine.geometry.grid, combine.starts_early) == ((5 * 6 * 2, 1, 1), True)
    assert (combine.geometry.block, dict(combine.maps)) == (128, {})
    assert (recipe.tiles, recipe.num_splits, recipe.counts_tiles) == (10, 40, False)
    rows = 40 * 2 * 3
    assert recipe.scratch == {"o_partial": rows * 128 * 4, "lse_partial": rows * 4}
    arguments: Any = recipe.arguments
    assert (arguments.key_blocks, arguments.split_blocks) == (8, 2)
    assert recipe.features == Sm90Features(heads_together=3, decode=True, splits=SplitKind.FIXED)


def test_few_queries_whose_keys_stay_whole_are_one_kernel() -> None:
    recipe = recipe_of(BLOCKS_OF_64, DECODE, split=KvSplits.whole(DECODE, 64))
    (step,) = recipe.steps
    assert step.geometry.grid == (10, 1, 1)
    assert (recipe.tiles, recipe.num_splits, dict(recipe.scratch)) == (10, 0, {})
    assert recipe.features == Sm90Features(heads_together=3, decode=True)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tile_order": TileOrder.DYNAMIC}, "tile_order"),
        ({"tile_order": TileOrder.PERSISTENT}, "tile_order"),
        ({"own_output": True}, "own_output"),
    ],
    ids=str,
)
def test_split_keys_leave_no_field_idle(change: dict[str, Any], field: str) -> None:
    config = replace(BLOCKS_OF_64, **change)
    with pytest.raises(UnsupportedError, match=f"{field} of the config would change nothing"):
        recipe_of(config, DECODE, split=SM90.split(config, DECODE, 128))


@pytest.mark.parametrize(("heads_k", "together"), [(6, 1), (3, 2), (2, 1), (1, 1)])
def test_heads_of_packed_queries_lie_side_by_side_if_a_warp_has_whole_queries(
    heads_k: int, together: int
) -> None:
    packed = replace(PROBLEM, heads_k=heads_k, total_q=900)
    features = SM90.features(DYNAMIC, packed)
    assert features == Sm90Features(per_batch=True, heads_together=together)
    assert SM90.features(DYNAMIC, replace(packed, total_q=None)) == Sm90Features()


def test_what_is_asked_is_in_the_features() -> None:
    asked = replace(
        PROBLEM, window=(5, 0), softcap=2.0, seqused_k=True, page_keys=64, pages=9, sinks=True
    )
    wanted = Sm90Features(MaskKind.WINDOW, True, True, 64, True, whole_rows=True)
    assert SM90.features(DYNAMIC, asked) == wanted
    assert not SM90.features(DYNAMIC, replace(asked, aligned_heads=False)).whole_rows
    assert SM90.features(HOPPER, PROBLEM, return_lse=True) == Sm90Features()


@pytest.mark.parametrize(
    ("change", "causal", "suits"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"tile_order": TileOrder.DYNAMIC}, True, True),
        ({"narrow_keys": 64}, False, False),
        ({"tile_order": TileOrder.DYNAMIC, "narrow_keys": 64}, True, True),
        ({"consumers": 1, "B_c": 64}, False, True),
        ({"consumers": 1, "B_c": 112}, False, False),
    ],
    ids=str,
)
def test_configs_that_suit_a_problem(change: dict[str, Any], causal: bool, suits: bool) -> None:
    config = replace(HOPPER, **change)
    problem = replace(PROBLEM, causal=causal, seq_q=SHORT)
    assert SM90.suits(config, problem) == suits
    if config.consumers == 1:
        assert not SM90.suits(config, replace(problem, seq_q=SHORT + 1))


def test_a_neighbours_tile_height_is_not_carried_over_where_waves_are_counted() -> None:
    narrow = replace(PROBLEM, d_head=64, d_v=64, batch=3, heads=12, heads_k=12, causal=False)
    for seq, d_head, two, three in ((3788, 64, False, True), (3788, 128, True, True)):
        problem = replace(narrow, seq_q=seq, seq_k=seq, d_head=d_head, d_v=d_head)
        of = [replace(HOPPER, d_head=d_head, consumers=n, B_c=64) for n in (2, 3)]
        assert [SM90.reaches(config, problem, ARCHES["sm_90"]) for config in of] == [two, three]


def test_the_size_of_a_group_goes_with_the_problem() -> None:
    long = replace(PROBLEM, seq_k=8192)
    assert group_mib(PROBLEM) != group_mib(long)
    assert SM90.fitted(DYNAMIC, long) == replace(DYNAMIC, group_mib=group_mib(long))
    scaled = 64 * group_mib(long) // group_mib(PROBLEM)
    assert SM90.fitted(DYNAMIC, long, PROBLEM) == replace(DYNAMIC, group_mib=scaled)
    assert SM90.fitted(replace(DYNAMIC, group_mib=1), PROBLEM, long).group_mib == 1
    assert SM90.fitted(replace(DYNAMIC, group_mib=4096), long, PROBLEM).group_mib == 4096
    assert SM90.fitted(HOPPER, long) == HOPPER


def test_a_choice_is_told_with_what_was_looked_at() -> None:
    short = replace(PROBLEM, seq_q=SHORT)
    assert SM90.why(HOPPER, short, None) == "d_head 128, full, up to 1024 queries"
    long = replace(PROBLEM, seq_q=SHORT + 1, causal=True)
    assert SM90.why(HOPPER, long, None) == "d_head 128, masked, over 1024 queries"
    told = SM90.why(HOPPER, DECODE, KvSplits.whole(DECODE, 64))
    assert told == "6 rows that share a head of k and v fit in 64, a warpgroup's"


@pytest.mark.parametrize(
    ("config", "slot", "contract"),
    [
        (UNIFIED, "Copy", "Copy: Transfers<Config> with load_q"),
        (UNIFIED, "Mask", "Mask: (args), kHasStart, kSeesAll, first_key, end_key"),
        (NARROW, "PingPong", "PingPong: Order<Consumers>(warpgroup) with wait(), arrive()"),
        (NARROW, "Rescale", "Rescale: kStale, try_stale_max<Exponential, DType>"),
    ],
)
def test_a_variant_that_breaks_its_contract_is_named_first(
    config: HopperForwardKernelConfig, slot: str, contract: str
) -> None:
    source = unit_of(config).source.replace("struct Config {", "struct Empty {};\nstruct Config {")
    source = re.sub(rf"using {slot} = [^;]+;", f"using {slot} = Empty;", source)
    with pytest.raises(CompileError) as error:
        compile_kernel(source, arch="sm_90a", name="empty")
    assert contract in error.value.log.split("error:")[1]


@pytest.mark.parametrize(
    ("config", "threads"),
    [
        (UNIFIED, 256),
        (replace(UNIFIED, tma=True), 256),
        (NARROW, 384),
        (replace(NARROW, consumers=3), 512),
    ],
)
def test_a_kernel_has_the_whole_multiprocessor(
    config: HopperForwardKernelConfig, threads: int
) -> None:
    unit = unit_of(config)
    assert unit.source.startswith(f"// {config.short_form()}\n#include <fa/sm90/forward.cuh>\n")
    assert f"__launch_bounds__({threads}, 1)\n" in unit.source
    assert "__align__(1024) char smem[]" in unit.source
    assert (unit.name, unit.target) == (config.kernel_name(), "sm_90a")


def test_tensor_maps_come_before_the_arguments_where_tma_reads_them() -> None:
    parameters = re.compile(rf"{ENTRY}_\w+\(\s+([^)]*)\)")

    def listed(config: HopperForwardKernelConfig) -> list[str]:
        found = parameters.search(unit_of(config).source)
        assert found is not None
        return [parameter.split(" ", 2)[-1] for parameter in re.split(r",\s+", found[1])]

    assert listed(UNIFIED) == ["fa::ForwardKernelArgs args"]
    assert "fa::sm90::NoMaps{}" in unit_of(UNIFIED).source
    maps = [f"fa::TensorMap {name}_map" for name in ("q", "k", "v", "o")]
    assert listed(NARROW) == [*maps, "fa::ForwardKernelArgs args"]
    assert "TensorMaps{q_map, k_map, v_map, o_map}" in unit_of(NARROW).source


def test_the_mask_is_bound_and_included_like_a_variant() -> None:
    masks: list[tuple[Features, str]] = [(PLAIN, "Full"), (CAUSAL, "Causal")]
    for features, name in masks:
        unit = unit_of(NARROW, features)
        assert f"  using Mask = fa::attn::mask::{name};\n" in unit.source
        assert "#include <fa/attn/mask.cuh>\n" in unit.source
    assert set(SM90.built_features()) == {PLAIN, CAUSAL}


def test_products_are_written_out_for_the_widths_in_use() -> None:
    wrapper = re.compile(r"struct fa::ptx::Wgmma(\w+)<fa::dtype::(\w+), (\d+)>")
    shared = ("FromShared", "Fp16")
    assert wrapper.findall(unit_of(NARROW).source) == [
        (*shared, "48"),
        (*shared, "80"),
        ("FromRegisters", "Fp16", "96"),
    ]
    assert wrapper.findall(unit_of(UNIFIED).source) == [
        ("FromShared", "Bf16", "80"),
        ("FromRegisters", "Bf16", "96"),
    ]
