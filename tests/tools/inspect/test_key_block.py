# SPDX-License-Identifier: Apache-2.0
"""A key block of both families by hand."""

from __future__ import annotations

from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.tools.inspect.key_block import KeyBlock


def test_of_the_first_family() -> None:
    config = parse_kernel_config("(FP16, 64, 128, 32, 4): async+swizzled+load_2_2_0_tiles")
    block = KeyBlock.of(config)
    assert (block.rows, block.keys, block.d_head, block.warps) == (128, 32, 64, 4)
    assert block.flop == 4 * 128 * 32 * 64
    assert block.kv_bytes == 2 * 32 * 64 * 2
    assert block.flop_per_byte == 128
    assert block.exponentials == 128 * 32


def test_a_producer_computes_nothing() -> None:
    config = parse_kernel_config("hopper(BF16, 128, 3, 80, 2): tma+specialised")
    block = KeyBlock.of(config)
    assert (block.rows, block.keys, block.warps) == (192, 80, 12)
    assert block.flop_per_byte == 192
