# SPDX-License-Identifier: Apache-2.0
"""Kernel configs: what is chosen at compile time, what is valid, and the sets worth building."""

from __future__ import annotations

import difflib
import os

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.config import KernelConfig
from flash_attention.families.parse import parse_kernel_config, parse_kernel_name
from flash_attention.families.registry import FAMILIES, sort_key
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import Violation
from flash_attention.ladder import LADDER_D_HEADS, get_ladder

__all__ = [
    "DType",
    "FlashForwardKernelConfig",
    "HopperForwardKernelConfig",
    "KernelConfig",
    "TileOrder",
    "Violation",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_kernel_config",
    "parse_kernel_name",
    "should_autotune_config",
    "sort_key",
]

SET_VARIABLE = "FLASH_ATTENTION_KERNELS"


def should_autotune_config(cfg: KernelConfig, arch: Arch = DEFAULT_ARCH) -> bool:
    """Whether the config is worth a measurement on `arch`: it breaks no rule there."""
    return cfg.broken_rule(arch) is None


def get_kernel_progression_configs(arch: Arch = DEFAULT_ARCH) -> list[KernelConfig]:
    """The rungs of the ladder that run on `arch`, for every data type and head dimension."""
    return [
        rung.config
        for d_head in LADDER_D_HEADS
        for dtype in DType
        for rung in get_ladder(dtype, d_head)
        if rung.config.broken_rule(arch) is None
    ]


def get_autotuning_kernel_configs(arch: Arch = DEFAULT_ARCH) -> list[KernelConfig]:
    """The valid part of the search spaces on `arch`."""
    spaces = (family.search_space() for family in FAMILIES)
    return [cfg for space in spaces for cfg in space if should_autotune_config(cfg, arch)]


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
