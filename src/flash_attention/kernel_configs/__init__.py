# SPDX-License-Identifier: Apache-2.0
"""Kernel configs: what is chosen at compile time, what is valid, and the sets worth building."""

from flash_attention.kernel_configs.dtype import DType
from flash_attention.kernel_configs.families import KernelConfig, sort_key
from flash_attention.kernel_configs.flash_forward import FlashForwardKernelConfig
from flash_attention.kernel_configs.hopper_forward import HopperForwardKernelConfig
from flash_attention.kernel_configs.parse import parse_kernel_config
from flash_attention.kernel_configs.sets import (
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    should_autotune_config,
)
from flash_attention.kernel_configs.tile_order import TileOrder
from flash_attention.kernel_configs.values import Violation

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
