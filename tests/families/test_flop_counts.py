# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flash_attention.kernel_configs import KernelConfig, parse_kernel_config

FLASH = parse_kernel_config("(BF16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles")
HOPPER = parse_kernel_config("hopper(BF16, 128, 2, 32, 2): tma+specialised")


@pytest.mark.parametrize("config", [FLASH, HOPPER], ids=["flash", "hopper"])
def test_every_family_counts_alike(config: KernelConfig) -> None:
    assert config.attn_flop(2, 3, 64) == 4 * 2 * 3 * 64 * 64 * 128
    assert config.attn_flop(1, 1, 64, 128) == 4 * 64 * 128 * 128
    rows, blocks = 64, 128 // 32
    assert config.total_flop(1, 1, 64, 128) == (
        4 * 64 * 128 * 128 + 5 * rows * 128 + rows * blocks * (128 + 3) + rows * 128
    )


def test_a_last_block_that_is_not_full_rescales_too() -> None:
    assert HOPPER.total_flop(1, 1, 1, 33) == 4 * 33 * 128 + 5 * 33 + 2 * (128 + 3) + 128
