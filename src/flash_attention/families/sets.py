# SPDX-License-Identifier: Apache-2.0
"""Sets of configs: the ladder, the search space of the tuner, and both."""

from __future__ import annotations

import difflib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain, product
from typing import Any

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.registry import KernelConfig, sort_key
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm80.forward.rules import CHOICES
from flash_attention.families.sm90.forward.space import hopper_search_space
from flash_attention.ladder import get_ladder

SET_VARIABLE = "FLASH_ATTENTION_KERNELS"

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
"""What the tuner tries of the sm_80+ family: the product of these, less what breaks a rule."""


def should_autotune_config(cfg: KernelConfig, arch: Arch = DEFAULT_ARCH) -> bool:
    """Whether the config is worth a measurement on `arch`: it breaks no rule there."""
    return cfg.broken_rule(arch) is None


def get_kernel_progression_configs(arch: Arch = DEFAULT_ARCH) -> list[KernelConfig]:
    """The rungs of the ladder that run on `arch`, for every data type and head dimension."""
    return [
        rung.config
        for d_head in SEARCH_SPACE["d_head"]
        for dtype in SEARCH_SPACE["dtype"]
        for rung in get_ladder(dtype, d_head)
        if rung.config.broken_rule(arch) is None
    ]


def get_autotuning_kernel_configs(arch: Arch = DEFAULT_ARCH) -> list[KernelConfig]:
    """The valid part of the search spaces on `arch`."""
    flash = (
        FlashForwardKernelConfig(**dict(zip(SEARCH_SPACE, values, strict=True)))
        for values in product(*SEARCH_SPACE.values())
    )
    every: Iterator[KernelConfig] = chain(flash, hopper_search_space())
    return [cfg for cfg in every if should_autotune_config(cfg, arch)]


def get_kernels_to_build(arch: Arch = DEFAULT_ARCH) -> list[KernelConfig]:
    """Ladder and search spaces together, without repeats, sorted family by family."""
    configs = {*get_kernel_progression_configs(arch), *get_autotuning_kernel_configs(arch)}
    return sorted(configs, key=sort_key)


KERNEL_SETS = {
    "progression": get_kernel_progression_configs,
    "autotuning": get_autotuning_kernel_configs,
    "all": get_kernels_to_build,
}


def get_kernel_configs(name: str | None = None, arch: Arch = DEFAULT_ARCH) -> list[KernelConfig]:
    """The set called `name`; without one, the set $FLASH_ATTENTION_KERNELS names, or the ladder."""
    chosen = name if name is not None else os.environ.get(SET_VARIABLE, "progression")
    if chosen not in KERNEL_SETS:
        nearest = difflib.get_close_matches(chosen, KERNEL_SETS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise KernelConfigError(
            f"there is no kernel set {chosen!r}; there are {', '.join(KERNEL_SETS)}{hint}",
            rule="kernel_set",
        )
    return KERNEL_SETS[chosen](arch)


def sample_configs(
    seed: int, arch: Arch = DEFAULT_ARCH, row_strides: tuple[int, ...] = (0,)
) -> Iterator[FlashForwardKernelConfig]:
    """Valid configs of the sm_80+ family for ever, every field drawn from all its values."""
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
