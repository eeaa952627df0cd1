# SPDX-License-Identifier: Apache-2.0
"""Reading a config back from its short form."""

from __future__ import annotations

import difflib
import re
from typing import Any

from flash_attention.errors import KernelConfigError
from flash_attention.kernel_configs.dtype import DType
from flash_attention.kernel_configs.flash_forward import SWITCH_TOKENS, FlashForwardKernelConfig

_SHORT_FORM = re.compile(
    r"\(\s*(\w+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)\s*:\s*(\S+)"
)
_LOADS = re.compile(r"load_(\d+)_(\d+)_(\d+)_tiles")
_STRIDE = re.compile(r"stride_(\d+)")


def parse_kernel_config(text: str) -> FlashForwardKernelConfig:
    """The config whose `short_form()` is `text`."""
    match = _SHORT_FORM.fullmatch(text.strip())
    if not match:
        raise KernelConfigError(
            f"{text!r} is not a kernel config; the form is "
            "'(FP16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles' "
            "with (dtype, d_head, B_r, B_c, n_warps)",
            rule="short_form",
        )
    dtype, *tile, words = match.groups()
    values: dict[str, Any] = dict.fromkeys(SWITCH_TOKENS.values(), False)
    values.update(zip(("d_head", "B_r", "B_c", "n_warps"), map(int, tile), strict=True))
    values.update(dict.fromkeys(("Q_mma_load_K_tiles", "K_mma_load_K_tiles"), 0))
    values.update(dtype=DType.from_string(dtype), V_mma_load_K_tiles=0)
    for word in words.split("+"):
        values.update(_fields_of(word))
    return FlashForwardKernelConfig(**values)


def _fields_of(word: str) -> dict[str, Any]:
    if word in SWITCH_TOKENS:
        return {SWITCH_TOKENS[word]: True}
    if loads := _LOADS.fullmatch(word):
        return {
            f"{operand}_mma_load_K_tiles": int(tiles)
            for operand, tiles in zip("QKV", loads.groups(), strict=True)
        }
    if stride := _STRIDE.fullmatch(word):
        return {"static_row_stride": int(stride[1])}
    known = [*SWITCH_TOKENS, "load_Q_K_V_tiles", "stride_N"]
    nearest = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise KernelConfigError(
        f"unknown word {word!r}{hint} (known: {', '.join(known)})", rule="short_form"
    )
