# SPDX-License-Identifier: Apache-2.0
"""A key block of both families by hand."""

from __future__ import annotations

import pytest

from flash_attention.kernel_configs import parse_kernel_config
from flash_attention_workbench.inspect.key_block import KeyBlock


def test_of_the_first_family() -> None:
    config = parse_kernel_config("(FP16, 64, 128, 32, 4): async+swizzled+load_2_2_0_tiles")
    block = KeyBlock.of(config)
    assert (block.rows, block.keys, block.d_head, block.warps) == (128, 32, 64, 4)
    assert block.flop == 4 * 128 * 32 * 64
    assert block.loaded_bytes == 2 * 32 * 64 * 2
    assert block.flop_per_byte == 128
    assert block.exponentials == 128 * 32


def test_a_producer_computes_nothing() -> None:
    config = parse_kernel_config("hopper(BF16, 128, 3, 80, 2): tma+specialised")
    block = KeyBlock.of(config)
    assert (block.rows, block.keys, block.warps) == (192, 80, 12)
    assert block.flop_per_byte == 192


def test_a_backward_kernel_visits_blocks_of_queries() -> None:
    config = parse_kernel_config("backward(BF16, 128, 64, 128, 8): columns_2+stages_1+load_1+dq_32")
    block = KeyBlock.of(config)
    assert (block.rows, block.keys, block.warps, block.products) == (64, 128, 8, 5)
    assert block.flop == 10 * 64 * 128 * 128
    assert block.loaded_bytes == 2 * 64 * 128 * 2


@pytest.mark.parametrize(
    ("tile", "words", "products", "warps"),
    [
        ("64, 128", "dq_staged+ds_1+rounded+paired+one_each", 5, 8),
        ("64, 128", "dq_own_warpgroup+ds_2+rounded+in_place+one_each", 4, 8),
        ("64, 128", "dq_workspace+ds_2+exact+in_place+one_each", 4, 8),
        ("64, 64", "dq_workspace+ds_2+exact+split+one_each", 2, 4),
    ],
    ids=["staged", "own warpgroup", "workspace", "split"],
)
def test_the_key_warpgroups_of_a_hopper_kernel_have_the_main_loop(
    tile: str, words: str, products: int, warps: int
) -> None:
    d_head = 256 if "split" in words else 128
    block = KeyBlock.of(parse_kernel_config(f"hopper_backward(BF16, {d_head}, {tile}, 2): {words}"))
    assert (block.products, block.warps) == (products, warps)
