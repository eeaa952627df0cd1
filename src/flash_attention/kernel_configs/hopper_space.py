# SPDX-License-Identifier: Apache-2.0
"""The Hopper configs the tuner tries, and samples of all the valid ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from flash_attention.kernel_configs.dtype import DType
from flash_attention.kernel_configs.hopper_forward import HopperForwardKernelConfig
from flash_attention.kernel_configs.hopper_rules import CHOICES
from flash_attention.kernel_configs.tile_order import TileOrder

TILES: dict[str, tuple[Any, ...]] = {
    "dtype": (DType.FP16, DType.BF16),
    "d_head": (64, 96, 128, 192, 256),
    "consumers": (2, 3),
    "B_c": (64, 80, 96, 112, 128, 144, 160, 176, 192),
}
SWITCHES: dict[str, tuple[Any, ...]] = {
    "ping_pong": (False, True),
    "own_output": (False, True),
    "prefetch_q": (False, True),
}
TILE_ORDERS: tuple[dict[str, Any], ...] = (
    {"tile_order": TileOrder.PERSISTENT},
    {"tile_order": TileOrder.DYNAMIC, "group_mib": 8},
    {"tile_order": TileOrder.DYNAMIC, "group_mib": 32},
    {"tile_order": TileOrder.DYNAMIC, "group_mib": 128},
)
ALWAYS: dict[str, Any] = {
    "tma": True,
    "specialised": True,
    "overlap": True,
    "rescale_threshold": 8,
    "watch_sums": True,
}


def hopper_search_space() -> Iterator[HopperForwardKernelConfig]:
    """What the tuner tries of the Hopper family, with what breaks a rule still in it."""
    for values in product(*TILES.values()):
        tile = dict(zip(TILES, values, strict=True))
        narrow_keys = (0, half_block(tile["B_c"]))
        stages = 3 if tile["d_head"] == 64 else 2  # as many as shared memory holds
        for switches in product(*SWITCHES.values(), TILE_ORDERS, narrow_keys):
            *on, order, narrow = switches
            yield HopperForwardKernelConfig(
                **tile,
                **ALWAYS,
                **dict(zip(SWITCHES, on, strict=True)),
                **order,
                stages=stages,
                narrow_keys=narrow,
            )


def half_block(keys: int) -> int:
    """The multiple of 16 nearest to half of `keys`, the greater of two."""
    return (keys // 2 + 8) // 16 * 16


def sample_hopper_configs(seed: int) -> Iterator[HopperForwardKernelConfig]:
    """Valid configs of the Hopper family for ever, every field drawn from all its values.

    Every third draw has no producer: field by field hardly any such config would be valid.
    """
    draw = random.Random(seed)
    while True:
        cfg = _draw_specialised(draw) if draw.randrange(3) else _draw_unified(draw)
        if cfg.broken_rule() is None:
            yield cfg


def _draw_tile(draw: random.Random) -> dict[str, Any]:
    tile = {name: draw.choice(CHOICES[name]) for name in ("d_head", "consumers", "B_c")}
    return {"dtype": draw.choice(tuple(DType)), **tile}


def _draw_unified(draw: random.Random) -> HopperForwardKernelConfig:
    return HopperForwardKernelConfig(
        **_draw_tile(draw),
        stages=1,
        tma=draw.random() < 0.5,
    )


def _draw_specialised(draw: random.Random) -> HopperForwardKernelConfig:
    tile = _draw_tile(draw)
    order = draw.choice(tuple(TileOrder))
    numbers = ("stages", "rescale_threshold")
    switches = ("ping_pong", "overlap", "own_output", "watch_sums", "prefetch_q")
    free: dict[str, Any] = {
        **{name: draw.choice(CHOICES[name]) for name in numbers},
        **{name: draw.random() < 0.5 for name in switches},
    }
    return HopperForwardKernelConfig(
        **tile,
        **free,
        tma=True,
        specialised=True,
        tile_order=order,
        group_mib=draw.choice(CHOICES["group_mib"][1:]) if order is TileOrder.DYNAMIC else 0,
        narrow_keys=draw.choice(range(0, tile["B_c"], 16)),
    )
