# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import fields
from itertools import islice

import pytest

from flash_attention.kernel_configs import HopperForwardKernelConfig, TileOrder
from flash_attention.kernel_configs.hopper_rules import CHOICES
from flash_attention.kernel_configs.hopper_space import (
    SWITCHES,
    TILE_ORDERS,
    TILES,
    half_block,
    hopper_search_space,
    sample_hopper_configs,
)


def test_the_search_space_holds_every_tile_and_switch_once() -> None:
    configs = list(hopper_search_space())
    tiles = 2 * 5 * 2 * 9
    assert len(configs) == len(set(configs)) == tiles * 2**3 * len(TILE_ORDERS) * 2  # narrow or not
    for field, values in {**TILES, **SWITCHES}.items():
        assert {getattr(cfg, field) for cfg in configs} == set(values), field
    assert {cfg.stages for cfg in configs if cfg.d_head == 64} == {3}
    assert {cfg.stages for cfg in configs if cfg.d_head != 64} == {2}


def test_every_head_dimension_keeps_a_valid_candidate_with_each_order() -> None:
    valid = [cfg for cfg in hopper_search_space() if cfg.broken_rule() is None]
    assert {(cfg.d_head, cfg.tile_order, cfg.group_mib) for cfg in valid} == {
        (d_head, *order)
        for d_head in TILES["d_head"]
        for order in ((TileOrder.PERSISTENT, 0), *((TileOrder.DYNAMIC, n) for n in (8, 32, 128)))
    }
    widest = {d: max(cfg.B_c for cfg in valid if cfg.d_head == d) for d in TILES["d_head"]}
    assert widest == {64: 192, 96: 192, 128: 176, 192: 112, 256: 80}


@pytest.mark.parametrize(("keys", "half"), [(64, 32), (80, 48), (96, 48), (112, 64), (176, 96)])
def test_half_a_block_is_a_multiple_of_sixteen(keys: int, half: int) -> None:
    assert half_block(keys) == half


def test_samples_are_valid_varied_and_repeatable() -> None:
    drawn = list(islice(sample_hopper_configs(1), 2000))
    assert drawn[:300] == list(islice(sample_hopper_configs(1), 300))
    assert all(cfg.broken_rule() is None for cfg in drawn)
    for field, values in CHOICES.items():
        if field not in ("B_c", "group_mib", "narrow_keys"):
            assert {getattr(cfg, field) for cfg in drawn} == set(values), field
    assert {16, 192} <= {cfg.B_c for cfg in drawn}
    assert len({cfg.group_mib for cfg in drawn}) > 100
    assert {cfg.tile_order for cfg in drawn} == set(TileOrder)
    switches = [f.name for f in fields(HopperForwardKernelConfig) if f.type == "bool"]
    assert all({getattr(cfg, name) for cfg in drawn} == {False, True} for name in switches)
