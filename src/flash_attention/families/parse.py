# SPDX-License-Identifier: Apache-2.0
"""Reading a config back from its short form."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.registry import KernelConfig
from flash_attention.families.sm80.forward.config import SWITCH_TOKENS, FlashForwardKernelConfig
from flash_attention.families.sm90.forward.config import PLAIN, HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder

_SHORT_FORM = re.compile(
    r"(|hopper)\s*\(\s*(\w+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)\s*:\s*(\S+)"
)
_LOADS = re.compile(r"load_(\d+)_(\d+)_(\d+)_tiles")
_STRIDE = re.compile(r"stride_(\d+)")
_HOPPER_SWITCHES = [f.name for f in fields(HopperForwardKernelConfig) if f.type == "bool"]
_HOPPER_NUMBER = re.compile(r"(lazy|narrow|poly|dynamic)_(\d+)")
_HOPPER_FIELDS = {"lazy": "rescale_threshold", "narrow": "narrow_keys"}


def parse_kernel_config(text: str) -> KernelConfig:
    """The config whose `short_form()` is `text`."""
    match = _SHORT_FORM.fullmatch(text.strip())
    if not match:
        raise KernelConfigError(
            f"{text!r} is not a kernel config; the form is "
            "'(FP16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles' "
            "with (dtype, d_head, B_r, B_c, n_warps), or "
            "'hopper(FP16, 128, 2, 128, 2): tma+specialised+overlap' "
            "with (dtype, d_head, consumers, B_c, stages)",
            rule="short_form",
        )
    family, dtype, *numbers, words = match.groups()
    tile = (DType.from_string(dtype), *map(int, numbers))
    return _read_hopper(tile, words) if family else _read_flash(tile, words)


def _read_flash(tile: Sequence[Any], words: str) -> FlashForwardKernelConfig:
    values: dict[str, Any] = dict.fromkeys(SWITCH_TOKENS.values(), False)
    values.update(zip(("dtype", "d_head", "B_r", "B_c", "n_warps"), tile, strict=True))
    values.update(dict.fromkeys((f"{operand}_mma_load_K_tiles" for operand in "QKV"), 0))
    return FlashForwardKernelConfig(**values | _fields(words.split("+"), _flash_fields))


def _flash_fields(word: str) -> dict[str, Any]:
    if word in SWITCH_TOKENS:
        return {SWITCH_TOKENS[word]: True}
    if loads := _LOADS.fullmatch(word):
        return {
            f"{operand}_mma_load_K_tiles": int(tiles)
            for operand, tiles in zip("QKV", loads.groups(), strict=True)
        }
    if stride := _STRIDE.fullmatch(word):
        return {"static_row_stride": int(stride[1])}
    _refuse(word, [*SWITCH_TOKENS, "load_Q_K_V_tiles", "stride_N"])


def _read_hopper(tile: Sequence[Any], words: str) -> HopperForwardKernelConfig:
    switches = [] if words == PLAIN else words.split("+")
    return HopperForwardKernelConfig(*tile, **_fields(switches, _hopper_fields))


def _hopper_fields(word: str) -> dict[str, Any]:
    if word in _HOPPER_SWITCHES:
        return {word: True}
    if word == "persistent":
        return {"tile_order": TileOrder.PERSISTENT}
    if number := _HOPPER_NUMBER.fullmatch(word):
        name, value = number[1], int(number[2])
        if name == "dynamic":
            return {"tile_order": TileOrder.DYNAMIC, "group_mib": value}
        return {_HOPPER_FIELDS[name]: value}
    numbers = [f"{name}_N" for name in ("dynamic", *_HOPPER_FIELDS)]
    _refuse(word, [*_HOPPER_SWITCHES, "persistent", *numbers, PLAIN])


def _fields(words: Iterable[str], read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return {field: value for word in words for field, value in read(word).items()}


def _refuse(word: str, known: list[str]) -> NoReturn:
    nearest = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise KernelConfigError(
        f"unknown word {word!r}{hint} (known: {', '.join(known)})", rule="short_form"
    )
