# SPDX-License-Identifier: Apache-2.0
"""Parse the short form of a HopperFp8KernelConfig."""

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
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS
from flash_attention.families.sm90.forward.parse import TILE
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig

_SWITCHES = [f.name for f in fields(HopperFp8KernelConfig) if f.type == "bool"]
_NUMBERS = {
    "q_buffers": "q_buffers",
    "linear": "linear_groups",
    "promote": "promote_blocks",
    "dynamic": "group_mib",
}
_ORDERS = {"one_each": TileOrder.ONE_EACH, "persistent": TileOrder.PERSISTENT}
_NUMBER = re.compile(rf"({'|'.join(_NUMBERS)})_({NUMBER})")
_WORD = "|".join((*_SWITCHES, *_ORDERS, *(rf"{name}_\d+" for name in _NUMBERS)))


def parse(tile: Sequence[str], words: Sequence[str]) -> HopperFp8KernelConfig:
    """Parse a tile and words. Switches that no word turns on are off."""
    return HopperFp8KernelConfig(**read_tile(tile, TILE) | read_words(words, _fields))


def parse_name(name: str) -> HopperFp8KernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""

    def of_rows(tile: Sequence[str], words: Sequence[str]) -> HopperFp8KernelConfig:
        dtype, d_head, rows, *others = tile
        return parse([dtype, d_head, str(int(rows) // WARPGROUP_ROWS), *others], words)

    return read_name(name, r"hopper_fp8_([a-z0-9]+)_d(\d+)_(\d+)x(\d+)_s(\d+)", _WORD, of_rows)


def _fields(word: str) -> dict[str, Any]:
    if word in _SWITCHES:
        return {word: True}
    if word in _ORDERS:
        return {"tile_order": _ORDERS[word]}
    if number := _NUMBER.fullmatch(word):
        dynamic = {"tile_order": TileOrder.DYNAMIC} if number[1] == "dynamic" else {}
        return {_NUMBERS[number[1]]: int(number[2]), **dynamic}
    refuse_word(word, [*_SWITCHES, *_ORDERS, *(f"{name}_N" for name in _NUMBERS)])
