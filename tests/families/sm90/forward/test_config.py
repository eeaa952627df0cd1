# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from tests.hopper_configs import EVERY_SWITCH
from tests.unchecked import unchecked

PLAIN = HopperForwardKernelConfig(DType.BF16, 128, 2, 128, 1)
FULL = EVERY_SWITCH
OTHER_VALUES: dict[str, Any] = {
    "dtype": DType.FP16,
    "d_head": 64,
    "consumers": 3,
    "B_c": 64,
    "stages": 1,
    "tma": False,
    "specialised": False,
    "ping_pong": False,
    "overlap": False,
    "tile_order": TileOrder.PERSISTENT,
    "group_mib": 32,
    "own_output": False,
    "direct_output": True,
    "rescale_threshold": 4,
    "narrow_keys": 0,
    "stale_max": False,
    "prefetch_q": False,
    "skip_empty": False,
    "wide_panels": True,
    "kv_8_bit": True,
    "q_8_bit": True,
    "scores_8_bit": True,
}
SCORES_8_BIT = {"kv_8_bit": True, "q_8_bit": True, "scores_8_bit": True}


def test_switches_are_off_by_default() -> None:
    assert not any(getattr(PLAIN, f.name) for f in fields(PLAIN)[5:])


def test_configs_are_frozen_hashable_and_ordered() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.B_c = 64  # type: ignore[misc]
    other = replace(FULL, tile_order=TileOrder.PERSISTENT, group_mib=0)
    assert sorted({FULL, other, replace(FULL)}) == [other, FULL]


def test_rows_and_threads_follow_the_warpgroups() -> None:
    assert [unchecked(FULL, consumers=n).B_r for n in (1, 2, 3)] == [64, 128, 192]
    assert [unchecked(FULL, consumers=n).num_threads for n in (1, 2, 3)] == [256, 384, 512]
    assert [unchecked(PLAIN, consumers=n).num_threads for n in (1, 2, 3)] == [128, 256, 384]


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_the_register_split_fits_what_a_cta_has_at_its_launch(consumers: int) -> None:
    """setmaxnreg waits for registers that other warps of the CTA give up, forever if none do."""
    config = unchecked(FULL, consumers=consumers)
    producer, consumer = config.register_split
    assert producer % 8 == consumer % 8 == 0
    threads = config.num_threads
    of_a_thread = 65536 // (threads * config.side_by_side) // 8 * 8
    assert 128 * (producer + consumers * consumer) <= of_a_thread * threads


def test_two_ctas_of_one_consumer_share_a_multiprocessor() -> None:
    config = replace(
        FULL,
        consumers=1,
        B_c=96,
        ping_pong=False,
        own_output=False,
        narrow_keys=0,
        skip_empty=False,
    )
    assert (config.side_by_side, config.register_split) == (2, (40, 216))
    assert config.num_ctas_per_sm() == 2
    large = replace(config, d_head=256)
    assert (large.side_by_side, large.register_split) == (1, (0, 0))
    assert large.broken_rule() is None


def test_the_short_form_names_the_family_and_every_switch() -> None:
    assert FULL.short_form() == (
        "hopper(BF16, 128, 2, 128, 2): tma+specialised+ping_pong+overlap+dynamic_64+own_output"
        "+lazy_8+narrow_64+stale_max+prefetch_q+skip_empty"
    )
    assert PLAIN.short_form() == "hopper(BF16, 128, 2, 128, 1): plain"
    persistent = replace(FULL, tile_order=TileOrder.PERSISTENT, group_mib=0)
    assert "+overlap+persistent+own_output" in persistent.short_form()


def struct_of_unit(config: HopperForwardKernelConfig) -> str:
    """What the kernel of plain attention is compiled with: the config and its features."""
    source = unit_of(config).source
    return source[source.index("struct Config {") : source.index("};")]


def test_every_field_changes_the_struct_and_the_names() -> None:
    assert set(OTHER_VALUES) == {f.name for f in fields(FULL)}
    needed = ("tma", "wide_panels")  # a producer has the one, and d_head 128 the other
    in_full = {name: v for name, v in OTHER_VALUES.items() if name not in needed}
    tight = replace(FULL, d_head=80)
    variants = [
        *(PLAIN, replace(PLAIN, tma=True), tight, replace(tight, wide_panels=True)),
        *(FULL, *(unchecked(FULL, **{name: v}) for name, v in in_full.items())),
    ]
    for describe in (
        struct_of_unit,
        HopperForwardKernelConfig.short_form,
        HopperForwardKernelConfig.kernel_name,
    ):
        assert len({describe(cfg) for cfg in variants}) == len(variants)
    assert all(cfg.kernel_name().replace("_", "").isalnum() for cfg in variants)


def test_the_order_of_the_tiles_and_the_output_are_bound_with_the_features() -> None:
    """Both follow from what is asked too; whatever else the config says stands before them."""
    assert struct_of_unit(FULL).splitlines()[: len(FULL.bindings()) + 4] == [
        *FULL.to_cpp_struct().splitlines()[:-1],
        "  using TileOrder = fa::sm90::tile_order::Dynamic;",
        "  using Output = fa::sm90::output::OwnBuffer;",
        "  using Descale = fa::sm90::descale::None;",
    ]


def test_cpp_struct_says_every_choice() -> None:
    assert FULL.to_cpp_struct().splitlines() == [
        "struct Config {",
        "  using DType = fa::dtype::Bf16;",
        "  static constexpr int kDHead = 128;",
        "  static constexpr int kConsumers = 2;",
        "  static constexpr int kBC = 128;",
        "  static constexpr int kStages = 2;",
        "  static constexpr int kGroupMib = 64;",
        "  static constexpr int kSkipEmpty = 1;",
        "  static constexpr int kScores8Bit = 0;",
        "  static constexpr int kConvertingWarps = 0;",
        "  static constexpr int kConvertQueries = 0;",
        "  static constexpr int kProducerRegisters = 40;",
        "  static constexpr int kConsumerRegisters = 232;",
        "  using PingPong = fa::sm90::ping_pong::On;",
        "  using Schedule = fa::sm90::schedule::Overlapped;",
        "  using FirstBlock = fa::sm90::first_block::Narrow<64>;",
        "  using Queries = fa::sm90::queries::Prefetched;",
        "  using Roles = fa::sm90::roles::Specialised;",
        "  using Rescale = fa::attn::rescale::StaleMax<8>;",
        "  using Exponential = fa::attn::exponential::FusedExp2;",
        "};",
    ]


def test_a_kernel_without_producer_binds_only_the_slots_it_has() -> None:
    assert PLAIN.to_cpp_struct().splitlines() == [
        "struct Config {",
        "  using DType = fa::dtype::Bf16;",
        "  static constexpr int kDHead = 128;",
        "  static constexpr int kConsumers = 2;",
        "  static constexpr int kBC = 128;",
        "  using Copy = fa::sm90::copy::CpAsync;",
        "  using Roles = fa::sm90::roles::Unified;",
        "  using Rescale = fa::attn::rescale::EveryBlock;",
        "  using Exponential = fa::attn::exponential::FusedExp2;",
        "};",
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"ping_pong": False}, "using PingPong = fa::sm90::ping_pong::Off;"),
        ({"overlap": False}, "using Schedule = fa::sm90::schedule::Serial;"),
        (
            {"tile_order": TileOrder.ONE_EACH},
            "using TileOrder = fa::sm90::tile_order::OneEach;",
        ),
        (
            {"tile_order": TileOrder.PERSISTENT},
            "using TileOrder = fa::sm90::tile_order::Persistent;",
        ),
        ({"own_output": False}, "using Output = fa::sm90::output::OverQueries;"),
        ({"narrow_keys": 0}, "using FirstBlock = fa::sm90::first_block::Whole;"),
        ({"prefetch_q": False}, "using Queries = fa::sm90::queries::OnDemand;"),
        ({"stale_max": False}, "using Rescale = fa::attn::rescale::Lazy<8>;"),
        (
            {"stale_max": False, "rescale_threshold": 0},
            "using Rescale = fa::attn::rescale::EveryBlock;",
        ),
        ({"consumers": 3}, "static constexpr int kConsumerRegisters = 160;"),
        ({"skip_empty": False}, "static constexpr int kSkipEmpty = 0;"),
        ({"kv_8_bit": True}, "using Roles = fa::sm90::roles::Converting;"),
        ({"kv_8_bit": True}, "static constexpr int kConvertingWarps = 3;"),
        ({"kv_8_bit": True, "q_8_bit": True}, "static constexpr int kConvertQueries = 1;"),
        ({"kv_8_bit": True}, "using Descale = fa::sm90::descale::PerHead;"),
        (SCORES_8_BIT, "using Roles = fa::sm90::roles::ScoresOf8Bits;"),
        (SCORES_8_BIT, "static constexpr int kConvertQueries = 0;"),
    ],
)
def test_a_switch_picks_its_variant(change: dict[str, Any], line: str) -> None:
    assert f"  {line}\n" in struct_of_unit(unchecked(FULL, **change))


def test_headers_are_those_of_the_variants() -> None:
    assert PLAIN.headers() == [
        "fa/attn/rescale.cuh",
        "fa/attn/softmax.cuh",
        "fa/dtype.cuh",
        "fa/sm90/copy.cuh",
        "fa/sm90/roles/unified.cuh",
    ]


def test_shared_memory_holds_q_the_stages_and_an_output_of_its_own() -> None:
    assert PLAIN.smem_bytes() == (128 + 2 * 128) * 128 * 2 + 256
    assert FULL.smem_bytes() == (128 + 4 * 128 + 128) * 128 * 2 + 256
    assert replace(FULL, own_output=False).smem_bytes() == (128 + 4 * 128) * 128 * 2 + 256


def test_resident_ctas_follow_the_scarcest_resource() -> None:
    sm90 = ARCHES["sm_90"]
    assert FULL.num_ctas_per_sm() == 1
    small = replace(PLAIN, d_head=64, B_c=64)
    assert small.num_ctas_per_sm(arch=sm90) == 6  # 233472 // (33024 + 1024)
    assert small.num_ctas_per_sm(arch=sm90, registers=168) == 1  # 65536 // (168 * 256)


def test_the_target_has_the_features_of_one_architecture_only() -> None:
    assert FULL.target(ARCHES["sm_90"]) == "sm_90a"
    assert FULL.default_arch is ARCHES["sm_90"]
