# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import fields, replace
from itertools import islice

import pytest

from flash_attention.families.sm90.forward.space import (
    GROUP_MIB,
    TILES,
    half_block,
    hopper_neighbours,
    hopper_search_space,
)
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from tests.hopper_configs import CHOICES, sample_hopper_configs, selected


def of(d_head: int, dtype: DType = DType.BF16) -> list[HopperForwardKernelConfig]:
    return [cfg for cfg in hopper_search_space() if (cfg.d_head, cfg.dtype) == (d_head, dtype)]


def test_the_search_space_is_valid_without_repeats_and_has_every_tile_under_both_orders() -> None:
    configs = list(hopper_search_space())
    assert len(configs) == len(set(configs))
    assert [cfg.short_form() for cfg in configs if cfg.broken_rule()] == []
    for d_head, tiles in TILES.items():
        found = {(cfg.consumers, cfg.B_c, cfg.stages, cfg.tile_order) for cfg in of(d_head)}
        orders = (TileOrder.PERSISTENT, TileOrder.DYNAMIC)
        assert found >= {(*tile, order) for tile in tiles for order in orders}
        assert {cfg.dtype for cfg in configs if cfg.d_head == d_head} == set(DType)


@pytest.mark.parametrize("d_head", sorted(TILES))
def test_around_the_middle_every_switch_is_tried_by_itself(d_head: int) -> None:
    middle, *others = of(d_head)
    changed = {
        tuple(f.name for f in fields(cfg) if getattr(cfg, f.name) != getattr(middle, f.name))
        for cfg in others
    }
    assert {("ping_pong",), ("stale_max",), ("prefetch_q",)} <= changed
    assert {("tile_order", "group_mib")} <= changed
    assert any(cfg.tile_order is TileOrder.ONE_EACH for cfg in others)


@pytest.mark.parametrize("d_head", sorted(TILES))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_what_is_selected_is_in_the_space_or_a_step_away(d_head: int, causal: bool) -> None:
    """But for the size of a group, which goes with the problem."""
    space = set(of(d_head))
    near = space | {n for cfg in space for n in hopper_neighbours(cfg)}
    for config, mask in selected(DType.BF16):
        if config.d_head == d_head and mask == causal:
            usual = replace(config, group_mib=GROUP_MIB if config.group_mib else 0)
            assert usual in near, config.short_form()


def test_neighbours_are_valid_and_a_step_away() -> None:
    for config in of(128):
        found = hopper_neighbours(config)
        assert config not in found
        assert len(found) == len(set(found))
        for near in found:
            assert near.broken_rule() is None
            changed = {
                f.name for f in fields(near) if getattr(near, f.name) != getattr(config, f.name)
            }
            assert len(changed) == 1 or changed == {"tile_order", "group_mib"}
            assert abs(near.B_c - config.B_c) <= 16
            assert abs(near.stages - config.stages) <= 1


@pytest.mark.parametrize(("keys", "half"), [(64, 32), (80, 48), (96, 48), (112, 64), (176, 96)])
def test_half_a_block_is_a_multiple_of_sixteen(keys: int, half: int) -> None:
    assert half_block(keys) == half


def test_samples_are_valid_varied_and_repeatable() -> None:
    drawn = list(islice(sample_hopper_configs(1), 2000))
    assert drawn[:300] == list(islice(sample_hopper_configs(1), 300))
    assert all(cfg.broken_rule() is None for cfg in drawn)
    of_8_bits = ("kv_8_bit", "q_8_bit", "scores_8_bit")  # samples are for tensors of 16 bits
    for field, values in CHOICES.items():
        if field not in ("B_c", "group_mib", "narrow_keys", *of_8_bits):
            assert {getattr(cfg, field) for cfg in drawn} == set(values), field
    assert {16, 192} <= {cfg.B_c for cfg in drawn}
    assert len({cfg.group_mib for cfg in drawn}) > 100
