# SPDX-License-Identifier: Apache-2.0
"""Kernel configs: what is chosen at compile time, what is valid, and the sets worth building."""

from flash_attention.call.dtype import DType
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.registry import KernelConfig, sort_key
from flash_attention.families.sets import (
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    should_autotune_config,
)
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.values import Violation

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
    "should_autotune_config",
    "sort_key",
]
