# SPDX-License-Identifier: Apache-2.0
"""From a short form back to the config."""

from __future__ import annotations

import re

from flash_attention.errors import KernelConfigError, quoted
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import FAMILIES

_SHORT_FORM = re.compile(r"([a-z_0-9]*)\s*\(([^()]*)\)\s*:\s*(\S+)")


def parse_kernel_config(text: str) -> KernelConfig:
    """The config whose `short_form()` is `text`."""
    if isinstance(text, str) and (match := _SHORT_FORM.fullmatch(text.strip())):
        prefix, tile, words = match.groups()
        for family in FAMILIES:
            if prefix == family.config_type.prefix:
                fields = [word.strip() for word in tile.split(",")]
                config: KernelConfig = family.parse(fields, words.split("+"))
                return config
    raise KernelConfigError(
        f"{quoted(text)} is not a kernel config; the form is "
        "'(FP16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles' "
        "with (dtype, d_head, B_r, B_c, n_warps), or "
        "'hopper(FP16, 128, 2, 128, 2): tma+specialised+overlap' "
        "with (dtype, d_head, consumers, B_c, stages)",
        rule="short_form",
    )
