# SPDX-License-Identifier: Apache-2.0
"""A problem read from tensors and the launch geometry it gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)
from flash_attention.problem import Geometry, Problem

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
HOPPER = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 2, tma=True, specialised=True)
PROBLEM = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=2,
    d_head=128,
    dtype=torch.float16,
    softmax_scale=128**-0.5,
)


def test_a_problem_is_read_from_the_tensors() -> None:
    q = torch.empty(2, 192, 6, 64, dtype=torch.bfloat16)
    k = torch.empty(2, 320, 3, 64, dtype=torch.bfloat16)
    problem = Problem.from_tensors(q, k)
    assert problem == Problem(
        batch=2,
        seq_q=192,
        seq_k=320,
        heads=6,
        heads_k=3,
        d_head=64,
        dtype=torch.bfloat16,
        softmax_scale=0.125,
        causal=False,
    )
    assert problem.heads_per_kv == 2
    asked = Problem.from_tensors(q, k, causal=True, softmax_scale=0.5)
    assert asked == replace(problem, causal=True, softmax_scale=0.5)


@pytest.mark.parametrize(
    "change",
    [{"batch": 0}, {"seq_q": 0}, {"seq_k": 0}, {"heads": 0}, {"heads": 0, "heads_k": 0}],
)
def test_without_a_query_or_a_key_there_is_nothing_to_launch(change: dict[str, Any]) -> None:
    assert not PROBLEM.idle
    assert replace(PROBLEM, **change).idle


@pytest.mark.parametrize(
    ("rows", "warps", "seq_q", "q_blocks"), [(64, 4, 192, 3), (128, 8, 256, 2), (64, 4, 64, 1)]
)
def test_every_query_block_of_every_head_gets_a_cta(
    rows: int, warps: int, seq_q: int, q_blocks: int
) -> None:
    config = replace(CONFIG, B_r=rows, n_warps=warps)
    geometry = Geometry.of(config, replace(PROBLEM, seq_q=seq_q), num_sms=1)
    assert geometry.grid == (q_blocks, 6, 5)
    assert geometry.block == 32 * warps
    assert geometry.smem_bytes == 2 * 128 * (rows + 32 + 32)


@pytest.mark.parametrize(
    ("consumers", "seq_q", "tiles"), [(2, 192, 60), (2, 128, 30), (1, 1, 30), (3, 193, 60)]
)
def test_a_hopper_grid_is_flat_and_covers_the_last_rows(
    consumers: int, seq_q: int, tiles: int
) -> None:
    config = replace(HOPPER, consumers=consumers, B_c=64)
    geometry = Geometry.of(config, replace(PROBLEM, seq_q=seq_q), num_sms=1)
    assert geometry.grid == (tiles, 1, 1)
    assert geometry.block == 128 * (consumers + 1)
    assert geometry.smem_bytes == config.smem_bytes()


@pytest.mark.parametrize("order", [TileOrder.PERSISTENT, TileOrder.DYNAMIC])
@pytest.mark.parametrize(("num_sms", "ctas"), [(132, 60), (60, 60), (59, 59), (2, 2)])
def test_persistent_ctas_are_as_many_as_the_device_holds(
    order: TileOrder, num_sms: int, ctas: int
) -> None:
    config = replace(HOPPER, tile_order=order, group_mib=64 * (order is TileOrder.DYNAMIC))
    assert Geometry.of(config, PROBLEM, num_sms).grid == (ctas, 1, 1)
