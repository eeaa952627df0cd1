# SPDX-License-Identifier: Apache-2.0
"""From the words of a short form to a FlashBackwardKernelConfig."""

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
from flash_attention.families.sm80.backward.config import (
    NUMBER_TOKENS,
    SWITCH_TOKENS,
    FlashBackwardKernelConfig,
)

TILE = ("dtype", "d_head", "B_r", "B_c", "n_warps")
_NUMBERS = re.compile(rf"({'|'.join(NUMBER_TOKENS)})_({NUMBER})")
_WORD = "|".join((*SWITCH_TOKENS, *(rf"{word}_\d+" for word in NUMBER_TOKENS)))


def parse(tile: Sequence[str], words: Sequence[str]) -> FlashBackwardKernelConfig:
    """The config of a tile and words; what no word says has its default."""
    return FlashBackwardKernelConfig(**read_tile(tile, TILE) | read_words(words, _fields))


def parse_name(name: str) -> FlashBackwardKernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""
    tile = rf"{FlashBackwardKernelConfig.prefix}_([a-z0-9]+)_d(\d+)_(\d+)x(\d+)_w(\d+)"
    return read_name(name, tile, _WORD, parse)


def _fields(word: str) -> dict[str, Any]:
    if word in SWITCH_TOKENS:
        return {SWITCH_TOKENS[word]: True}
    if number := _NUMBERS.fullmatch(word):
        return {NUMBER_TOKENS[number[1]]: int(number[2])}
    refuse_word(word, [*SWITCH_TOKENS, *(f"{word}_N" for word in NUMBER_TOKENS)])
