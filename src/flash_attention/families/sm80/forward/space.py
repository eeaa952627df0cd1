# SPDX-License-Identifier: Apache-2.0
"""The sm_80 configs that the tuner tries, and samples of all the valid ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm80.forward.rules import CHOICES

SEARCH_SPACE: dict[str, tuple[Any, ...]] = {
    "dtype": (DType.FP16, DType.BF16),
    "d_head": (64, 128),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "async_copy": (True,),
    "eager_load_blocks": (True,),
    "swizzled": (True,),
    "Q_mma_load_K_tiles": (0, 2),
    "K_mma_load_K_tiles": (2,),
    "V_mma_load_K_tiles": (1,),
    "mma_double_buffer_loads": (True,),
    "optimized_softmax": (True,),
    "folded_addresses": (True,),
    "serpentine_mma": (False, True),
    "peel_first_block": (False, True),
    "stage_output": (True,),
    "reciprocal_normalise": (True,),
    "reverse_kv": (False,),
    "cache_hints": (False,),
    "column_panels": (False, True),
    "static_row_stride": (0,),
}
"""What the tuner tries: the product of these, less what breaks a rule."""


def search_space() -> Iterator[FlashForwardKernelConfig]:
    """Every combination of `SEARCH_SPACE`."""
    for values in product(*SEARCH_SPACE.values()):
        yield FlashForwardKernelConfig(**dict(zip(SEARCH_SPACE, values, strict=True)))


def sample_configs(
    seed: int, arch: Arch = DEFAULT_ARCH, row_strides: tuple[int, ...] = (0,)
) -> Iterator[FlashForwardKernelConfig]:
    """Valid configs of the sm_80 family for ever, every field drawn from all its values."""
    draw = random.Random(seed)
    choices: dict[str, Sequence[Any]] = {
        **{field.name: (False, True) for field in fields(FlashForwardKernelConfig)},
        **CHOICES,
        "dtype": tuple(DType),
        "static_row_stride": row_strides,
    }
    while True:
        cfg = FlashForwardKernelConfig(**{name: draw.choice(v) for name, v in choices.items()})
        if cfg.broken_rule(arch) is None:
            yield cfg
