# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    sort_key,
)

FLASH = FlashForwardKernelConfig(DType.BF16, 128, 64, 32, 4, True, True, True, 2, 2, 0, True, True)
HOPPER = HopperForwardKernelConfig(DType.BF16, 128, 2, 128, 1)


def test_configs_are_sorted_family_by_family_and_then_in_their_own_order() -> None:
    fp16: list[KernelConfig] = [replace(FLASH, dtype=DType.FP16), replace(HOPPER, dtype=DType.FP16)]
    mixed: list[KernelConfig] = [HOPPER, FLASH, *reversed(fp16)]
    assert sorted(mixed, key=sort_key) == [fp16[0], FLASH, fp16[1], HOPPER]
