# SPDX-License-Identifier: Apache-2.0
"""From the words of a short form to a FlashForwardKernelConfig."""

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
from flash_attention.families.sm80.forward.config import SWITCH_TOKENS, FlashForwardKernelConfig

TILE = ("dtype", "d_head", "B_r", "B_c", "n_warps")
LOADS = tuple(f"{operand}_mma_load_K_tiles" for operand in "QKV")
_LOADS = re.compile(rf"load_({NUMBER})_({NUMBER})_({NUMBER})_tiles")
_STRIDE = re.compile(rf"stride_({NUMBER})")
_WORD = "|".join((*SWITCH_TOKENS, r"load_\d+_\d+_\d+_tiles", r"stride_\d+"))


def parse(tile: Sequence[str], words: Sequence[str]) -> FlashForwardKernelConfig:
    """The config of a tile and words; what no word turns on is off."""
    off: dict[str, Any] = dict.fromkeys(SWITCH_TOKENS.values(), False) | dict.fromkeys(LOADS, 0)
    return FlashForwardKernelConfig(**off | read_tile(tile, TILE) | read_words(words, _fields))


def parse_name(name: str) -> FlashForwardKernelConfig | None:
    """The config whose `kernel_name()` a name begins with."""
    return read_name(name, r"([a-z0-9]+)_d(\d+)_(\d+)x(\d+)_w(\d+)", _WORD, parse)


def _fields(word: str) -> dict[str, Any]:
    if word in SWITCH_TOKENS:
        return {SWITCH_TOKENS[word]: True}
    if loads := _LOADS.fullmatch(word):
        return dict(zip(LOADS, map(int, loads.groups()), strict=True))
    if stride := _STRIDE.fullmatch(word):
        return {"static_row_stride": int(stride[1])}
    refuse_word(word, [*SWITCH_TOKENS, "load_Q_K_V_tiles", "stride_N"])
