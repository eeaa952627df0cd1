# SPDX-License-Identifier: Apache-2.0
"""Parse the short form of a HopperMlaKernelConfig."""

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
from flash_attention.families.sm90.forward.config import PLAIN
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig

TILE = ("dtype", "d_v")
_LAZY = re.compile(rf"lazy_({NUMBER})")
_SWITCHES = [f.name for f in fields(HopperMlaKernelConfig) if f.type == "bool"]
_WORD = "|".join((r"lazy_\d+", *_SWITCHES, PLAIN))


def parse(tile: Sequence[str], words: Sequence[str]) -> HopperMlaKernelConfig:
    """Parse a tile and words. Switches that no word turns on are off."""
    switches = () if list(words) == [PLAIN] else words
    return HopperMlaKernelConfig(**read_tile(tile, TILE) | read_words(switches, _fields))


def parse_name(name: str) -> HopperMlaKernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""
    return read_name(name, r"hopper_mla_([a-z0-9]+)_v(\d+)", _WORD, parse)


def _fields(word: str) -> dict[str, Any]:
    if word in _SWITCHES:
        return {word: True}
    if number := _LAZY.fullmatch(word):
        return {"rescale_threshold": int(number[1])}
    refuse_word(word, ["lazy_N", *_SWITCHES, PLAIN])
