# SPDX-License-Identifier: Apache-2.0
"""Parse the short form of a HopperBackwardKernelConfig."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from flash_attention.families.short_form import (
    NUMBER,
    read_name,
    read_tile,
    read_words,
    refuse_word,
)
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import (
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)

TILE = ("dtype", "d_head", "B_r", "B_c", "stages")
_SLOTS: dict[str, dict[str, Any]] = {
    **{f"dq_{each.word}": {"query_gradient": each} for each in QueryGradient},
    **{each.word: {"derivative": each} for each in Derivative},
    **{each.word: {"schedule": each} for each in Schedule},
    TileOrder.ONE_EACH.word: {"tile_order": TileOrder.ONE_EACH},
}
_ORDERS = {each.word: each for each in TileOrder if each is not TileOrder.ONE_EACH}
_NUMBER = re.compile(rf"(ds|{'|'.join(_ORDERS)})_({NUMBER})")
_WORD = "|".join((*sorted(_SLOTS, reverse=True), *(rf"{name}_\d+" for name in ("ds", *_ORDERS))))


def parse(tile: Sequence[str], words: Sequence[str]) -> HopperBackwardKernelConfig:
    """Parse a tile and words."""
    return HopperBackwardKernelConfig(**read_tile(tile, TILE) | read_words(words, _fields))


def parse_name(name: str) -> HopperBackwardKernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""
    tile = rf"{HopperBackwardKernelConfig.prefix}_([a-z0-9]+)_d(\d+)_(\d+)x(\d+)_s(\d+)"
    return read_name(name, tile, _WORD, parse)


def _fields(word: str) -> dict[str, Any]:
    if word in _SLOTS:
        return _SLOTS[word]
    if number := _NUMBER.fullmatch(word):
        if number[1] == "ds":
            return {"ds_stages": int(number[2])}
        return {"tile_order": _ORDERS[number[1]], "group_heads": int(number[2])}
    refuse_word(word, [*_SLOTS, "ds_N", *(f"{order}_N" for order in _ORDERS)])
