# SPDX-License-Identifier: Apache-2.0
"""The kernel families, and an order over the configs of all of them."""

from __future__ import annotations

from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig

KernelConfig = FlashForwardKernelConfig | HopperForwardKernelConfig

FAMILIES: tuple[type[KernelConfig], ...] = (FlashForwardKernelConfig, HopperForwardKernelConfig)


def sort_key(config: KernelConfig) -> tuple[int, KernelConfig]:
    """Family by family, each in its own order; configs of two families do not compare."""
    return FAMILIES.index(type(config)), config
