# SPDX-License-Identifier: Apache-2.0
"""The search space of Hopper configs: where the tuner starts, and the neighbours of a config."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from flash_attention.call.dtype import DType
from flash_attention.families.config import changed
from flash_attention.families.neighbours import neighbours_of
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder

Tile = tuple[int, int, int]
TILES: dict[int, tuple[Tile, ...]] = {
    64: (
        *((3, 128, 3), (2, 128, 3)),
        *((3, 128, 2), (3, 112, 3), (3, 96, 3), (3, 96, 4), (3, 64, 4)),
        *((2, 128, 2), (2, 128, 4), (2, 96, 4), (2, 144, 3), (2, 160, 3), (2, 176, 2), (2, 192, 2)),
        *((1, 128, 3), (1, 160, 2), (1, 96, 4)),
    ),
    96: (
        *((2, 128, 3), (2, 128, 2), (2, 112, 3), (2, 96, 3), (2, 96, 4)),
        *((2, 144, 2), (2, 160, 2), (3, 96, 2), (3, 80, 3)),
    ),
    128: (
        *((2, 128, 2), (2, 112, 2), (2, 144, 2), (2, 160, 2), (2, 176, 2)),
        *((2, 96, 3), (2, 96, 2), (2, 80, 3), (2, 64, 4), (2, 64, 3)),
        *((3, 80, 3), (3, 80, 2), (3, 64, 3)),
        *((1, 96, 2), (1, 80, 2)),
    ),
    192: ((2, 112, 2), (2, 96, 2), (2, 80, 2), (2, 64, 2), (2, 64, 3)),
    256: ((2, 64, 2), (2, 80, 2), (2, 48, 2), (2, 48, 3), (2, 64, 1)),
}
"""Consumers, keys and stages worth a measurement at each d_head, the centre of the search first.

Larger key blocks spill, or leave too little shared memory for two stages. With one consumer, two
CTAs share a multiprocessor. One of them computes while the other starts or ends a tile, but K and V
are loaded for only 64 rows at a time, which pays off at short lengths only.
"""
CENTRES = {64: 2}  # tiles for which every switch is tried; for the others only a few are
ALWAYS: dict[str, Any] = {
    "tma": True,
    "specialised": True,
    "overlap": True,
    "rescale_threshold": 8,
}
GROUP_MIB = 32  # a placeholder, since the size of a group depends on the problem


def hopper_search_space() -> Iterator[HopperForwardKernelConfig]:
    """Yield the Hopper configs that the tuner starts with.

    For each tile these are its usual best configs, without a mask and with a causal one, and
    variants in single fields. The tuner continues from the best of them with `hopper_neighbours`.
    """
    for dtype, d_head in product(DType, TILES):
        yield from hopper_combinations(dtype, d_head)


def hopper_combinations(dtype: DType, d_head: int) -> Iterator[HopperForwardKernelConfig]:
    """Yield those of a data type and a head dimension, which need not be one of TILES."""
    for place, tile in enumerate(tiles_of(d_head)):
        central = place < CENTRES.get(d_head, 1)
        middles = [(_usual(dtype, d_head, tile, causal), causal) for causal in (False, True)]
        star = [
            c
            for middle, causal in middles
            if middle is not None
            for c in (middle, *_changed(middle, causal, central))
        ]
        yield from dict.fromkeys(config for config in star if config is not None)


def tiles_of(d_head: int) -> list[Tile]:
    """Return the tiles worth a measurement: between two of TILES, those of both."""
    if d_head in TILES:
        return list(TILES[d_head])
    above = min(listed for listed in TILES if listed > d_head)
    below = max((listed for listed in TILES if listed < d_head), default=above)
    return list(dict.fromkeys((*TILES[above], *TILES[below])))


def _usual(dtype: DType, d_head: int, tile: Tile, causal: bool) -> HopperForwardKernelConfig | None:
    config = changed(
        HopperForwardKernelConfig(dtype, d_head, consumers=1, B_c=16, stages=1),
        **dict(zip(("consumers", "B_c", "stages"), tile, strict=True)),
        **ALWAYS,
        ping_pong=tile[0] > 1,
        stale_max=True,
        prefetch_q=d_head != 128,
        tile_order=TileOrder.DYNAMIC if causal else TileOrder.PERSISTENT,
        group_mib=GROUP_MIB if causal else 0,
        narrow_keys=half_block(tile[1]) if causal else 0,
    )
    if config is None:
        return None
    own = changed(config, own_output=True)
    if own is not None and (own.consumers > 1 or own.side_by_side == 2):
        return own
    return changed(config, direct_output=_is_direct(d_head))


def _is_direct(d_head: int) -> bool:
    """Whether O that has no buffer usually leaves from registers."""
    return 128 < d_head <= 192


def _changed(
    middle: HopperForwardKernelConfig, causal: bool, central: bool
) -> Iterator[HopperForwardKernelConfig | None]:
    one_each = changed(
        middle, tile_order=TileOrder.ONE_EACH, group_mib=0, own_output=False, prefetch_q=False
    )  # the output buffer and the prefetch need CTAs with several tiles
    if middle.consumers == 1:
        if not causal:
            yield one_each
        return
    yield changed(middle, ping_pong=False)
    if middle.own_output:
        yield changed(middle, own_output=False, direct_output=_is_direct(middle.d_head))
    if central or middle.d_head == 256:  # there registers are so scarce that stale_max may spill
        yield changed(middle, stale_max=False)
    if not central:
        return
    yield changed(middle, prefetch_q=not middle.prefetch_q)
    if causal:
        yield changed(middle, narrow_keys=0)
        yield changed(middle, ping_pong=False, prefetch_q=not middle.prefetch_q)
    else:
        yield changed(middle, tile_order=TileOrder.DYNAMIC, group_mib=GROUP_MIB)
        yield one_each


def hopper_neighbours(config: HopperForwardKernelConfig) -> list[HopperForwardKernelConfig]:
    """Return the valid configs that differ in one number or one switch."""
    keys, group = config.B_c, config.group_mib
    orders = ((TileOrder.PERSISTENT, 0), (TileOrder.DYNAMIC, GROUP_MIB))
    return neighbours_of(
        config,
        fixed=(*ALWAYS, "tile_order", "kv_8_bit", "q_8_bit"),
        values={
            "narrow_keys": (0, half_block(keys), half_block(keys // 2)),
            "group_mib": (group // 2, group * 3 // 4, group * 3 // 2, group * 2),
        },
        together=[
            {"tile_order": order, "group_mib": mib}
            for order, mib in orders
            if order is not config.tile_order
        ],
    )


def half_block(keys: int) -> int:
    """Return the multiple of 16 nearest to half of `keys`, rounding up."""
    return (keys // 2 + 8) // 16 * 16
