# SPDX-License-Identifier: Apache-2.0
"""The search space of Hopper backward configs, and the neighbours of a config."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.families.config import changed
from flash_attention.families.neighbours import neighbours_of
from flash_attention.families.sm90.backward.config import WIDEST_KEYS, HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import (
    GROUP_HEADS,
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)

TILES = {
    32: (128, 128),
    64: (128, 128),
    96: (64, 128),
    128: (64, 128),
    160: (64, 64),
    192: (64, 64),
    256: (64, 64),
}
"""The queries of a block and the keys of a tile at each d_head."""
ORDERS: tuple[dict[str, Any], ...] = (
    {"tile_order": TileOrder.ONE_EACH, "group_heads": 0},
    {"tile_order": TileOrder.GROUPED, "group_heads": GROUP_HEADS},
    {"tile_order": TileOrder.DYNAMIC, "group_heads": GROUP_HEADS},
)


def backward_search_space() -> Iterator[HopperBackwardKernelConfig]:
    """Yield the configs that the tuner starts with: those of the fast end of the ladder, and those
    that store dS."""
    for dtype, (d_head, tile), derivative, order in product(
        DType, TILES.items(), Derivative, ORDERS
    ):
        for query_gradient, schedule in product(
            (QueryGradient.OWN_WARPGROUP, QueryGradient.WORKSPACE, QueryGradient.ORDERED),
            (Schedule.PAIRED, Schedule.IN_PLACE, Schedule.SPLIT),
        ):
            config = _made(dtype, d_head, tile, query_gradient, derivative, schedule, order)
            if config is not None:
                yield config


def _made(
    dtype: DType,
    d_head: int,
    tile: tuple[int, int],
    query_gradient: QueryGradient,
    derivative: Derivative,
    schedule: Schedule,
    order: dict[str, Any],
) -> HopperBackwardKernelConfig | None:
    split = d_head > WIDEST_KEYS
    plain = HopperBackwardKernelConfig(
        *(dtype, d_head, *tile, 2),
        query_gradient=QueryGradient.WORKSPACE if split else QueryGradient.OWN_WARPGROUP,
        ds_stages=2,
        derivative=Derivative.ROUNDED,
        schedule=Schedule.SPLIT if split else Schedule.IN_PLACE,
    )
    return changed(
        plain, query_gradient=query_gradient, derivative=derivative, schedule=schedule, **order
    )


def backward_neighbours(config: HopperBackwardKernelConfig) -> list[HopperBackwardKernelConfig]:
    """Return the valid configs that differ in one number or one switch."""
    group = config.group_heads
    return neighbours_of(
        config,
        fixed=("B_r", "B_c", "query_gradient", "tile_order"),
        values={"group_heads": (max(group // 2, 1), group * 2) if group else ()},
        together=ORDERS,
    )
