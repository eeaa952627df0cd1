# SPDX-License-Identifier: Apache-2.0
"""The Hopper configs that tests share, so that each is compiled once: rungs, and selected ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from flash_attention.arch import ARCHES
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import KernelConfigError
from flash_attention.families.fields import choices
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from flash_attention.ladder import Rung, get_ladder

D_HEADS = (64, 80, 96, 128, 192, 256)
LENGTHS = tuple(512 << i for i in range(6))
TOKENS = 16384
LADDERS = (
    *((DType.FP16, 64, False), (DType.BF16, 128, True)),
    *((DType.FP16, 64, True), (DType.BF16, 64, False)),
)
FIRST_CAUSAL_RUNG = 27
CHOICES = choices(HopperForwardKernelConfig)
GROUP_MIB = 4  # stands for every size of a group: it is one constant of the kernel

EVERY_SWITCH = HopperForwardKernelConfig(
    dtype=DType.BF16,
    d_head=128,
    consumers=2,
    B_c=128,
    stages=2,
    tma=True,
    specialised=True,
    ping_pong=True,
    overlap=True,
    tile_order=TileOrder.DYNAMIC,
    group_mib=64,
    own_output=True,
    rescale_threshold=8,
    narrow_keys=64,
    stale_max=True,
    prefetch_q=True,
    skip_empty=True,
)


def square(
    dtype: DType, d_head: int, seq_len: int, causal: bool = False, heads: int = 16
) -> Problem:
    """Self-attention over 16k tokens."""
    return Problem(
        *(TOKENS // seq_len, seq_len, seq_len, heads, heads, d_head, d_head),
        *(dtype.to_torch_dtype(), d_head**-0.5, causal),
    )


def hopper_ladder(dtype: DType, d_head: int) -> list[tuple[Rung, HopperForwardKernelConfig]]:
    """The rungs of the Hopper family and their configs."""
    return [
        (rung, rung.config)
        for rung in get_ladder(dtype, d_head)
        if isinstance(rung.config, HopperForwardKernelConfig)
    ]


def of_the_gate(rung: Rung, ladder: tuple[DType, int, bool]) -> bool:
    """Whether every run of the tests tries a rung in one of LADDERS: all in the first, and in the
    second, which has the other type, mask and width, those that a causal mask shows."""
    shown = rung.number >= FIRST_CAUSAL_RUNG
    return ladder == LADDERS[0] or (ladder == LADDERS[1] and shown)


def first_of_each_width(
    configs: Iterable[tuple[HopperForwardKernelConfig, bool]],
) -> set[tuple[HopperForwardKernelConfig, bool]]:
    """The first config of every head dimension and mask."""
    found: dict[tuple[int, bool], tuple[HopperForwardKernelConfig, bool]] = {}
    for config, causal in configs:
        found.setdefault((config.d_head, causal), (config, causal))
    return set(found.values())


@cache
def selected(
    dtype: DType, lengths: tuple[int, ...] = LENGTHS
) -> tuple[tuple[HopperForwardKernelConfig, bool], ...]:
    """What `select_config` picks over 16k tokens, each config and mask once, groups of one size."""
    found: dict[tuple[HopperForwardKernelConfig, bool], None] = {}
    for d_head in D_HEADS:
        for causal in (False, True):
            for seq_len in lengths:
                config = select_config(square(dtype, d_head, seq_len, causal), ARCHES["sm_90"])
                assert isinstance(config, HopperForwardKernelConfig)
                if config.group_mib:
                    config = replace(config, group_mib=GROUP_MIB)
                found[config, causal] = None
    return tuple(found)


def sample_hopper_configs(seed: int) -> Iterator[HopperForwardKernelConfig]:
    """Valid configs for tensors of 16 bits for ever, every other field drawn from all its values.

    Every third draw has no producer: field by field hardly any such config would be valid.
    """
    draw = random.Random(seed)
    while True:
        with suppress(KernelConfigError):
            yield _draw_specialised(draw) if draw.randrange(3) else _draw_unified(draw)


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
    switches = (
        *("ping_pong", "overlap", "own_output", "stale_max", "prefetch_q", "skip_empty"),
        *("direct_output", "wide_panels"),
    )
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
