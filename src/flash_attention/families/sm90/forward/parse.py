# SPDX-License-Identifier: Apache-2.0
"""Parse the short form of a HopperForwardKernelConfig."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from flash_attention.families.short_form import (
    NUMBER,
    read_name,
    read_tile,
    read_words,
    refuse_word,
)
from flash_attention.families.sm90.forward.config import (
    PLAIN,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder

TILE = ("dtype", "d_head", "consumers", "B_c", "stages")
_SWITCHES = [f.name for f in fields(HopperForwardKernelConfig) if f.type == "bool"]
_NUMBERS = {"lazy": "rescale_threshold", "narrow": "narrow_keys", "dynamic": "group_mib"}
_NUMBER = re.compile(rf"({'|'.join(_NUMBERS)})_({NUMBER})")
_WORD = "|".join((*_SWITCHES, "persistent", PLAIN, *(rf"{name}_\d+" for name in _NUMBERS)))


def parse(tile: Sequence[str], words: Sequence[str]) -> HopperForwardKernelConfig:
    """Parse a tile and words. Switches that no word turns on are off."""
    switches = () if list(words) == [PLAIN] else words
    return HopperForwardKernelConfig(**read_tile(tile, TILE) | read_words(switches, _fields))


def parse_name(name: str) -> HopperForwardKernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""

    def of_rows(tile: Sequence[str], words: Sequence[str]) -> HopperForwardKernelConfig:
        dtype, d_head, rows, *others = tile
        return parse([dtype, d_head, str(int(rows) // WARPGROUP_ROWS), *others], words)

    return read_name(name, r"hopper_([a-z0-9]+)_d(\d+)_(\d+)x(\d+)_s(\d+)", _WORD, of_rows)


def _fields(word: str) -> dict[str, Any]:
    if word in _SWITCHES:
        return {word: True}
    if word == "persistent":
        return {"tile_order": TileOrder.PERSISTENT}
    if number := _NUMBER.fullmatch(word):
        dynamic = {"tile_order": TileOrder.DYNAMIC} if number[1] == "dynamic" else {}
        return {_NUMBERS[number[1]]: int(number[2]), **dynamic}
    numbers = [f"{name}_N" for name in ("dynamic", "lazy", "narrow")]
    refuse_word(word, [*_SWITCHES, "persistent", *numbers, PLAIN])
