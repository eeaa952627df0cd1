# SPDX-License-Identifier: Apache-2.0
"""Parse the short form of a HopperWideKernelConfig."""

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
from flash_attention.families.sm90.forward.config import PLAIN
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig

TILE = ("dtype", "d_head", "d_v")
_LAZY = re.compile(rf"lazy_({NUMBER})")


def parse(tile: Sequence[str], words: Sequence[str]) -> HopperWideKernelConfig:
    """Parse a tile and words."""
    rest = () if list(words) == [PLAIN] else words
    return HopperWideKernelConfig(**read_tile(tile, TILE) | read_words(rest, _fields))


def parse_name(name: str) -> HopperWideKernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""
    return read_name(name, r"hopper_wide_([a-z0-9]+)_d(\d+)_v(\d+)", rf"lazy_\d+|{PLAIN}", parse)


def _fields(word: str) -> dict[str, Any]:
    if number := _LAZY.fullmatch(word):
        return {"rescale_threshold": int(number[1])}
    refuse_word(word, ["lazy_N", PLAIN])
