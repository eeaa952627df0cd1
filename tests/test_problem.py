# SPDX-License-Identifier: Apache-2.0
"""A problem read from tensors and the launch geometry it gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.problem import Geometry, Problem

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)


def test_a_problem_is_read_from_the_tensors() -> None:
    q = torch.empty(2, 192, 3, 64, dtype=torch.bfloat16)
    k = torch.empty(2, 320, 3, 64, dtype=torch.bfloat16)
    problem = Problem.from_tensors(q, k)
    assert problem == Problem(
        batch=2, seq_q=192, seq_k=320, heads=3, d_head=64, dtype=torch.bfloat16, softmax_scale=0.125
    )


@pytest.mark.parametrize(
    ("rows", "warps", "seq_q", "q_blocks"), [(64, 4, 192, 3), (128, 8, 256, 2), (64, 4, 64, 1)]
)
def test_every_query_block_of_every_head_gets_a_cta(
    rows: int, warps: int, seq_q: int, q_blocks: int
) -> None:
    config = replace(CONFIG, B_r=rows, n_warps=warps)
    problem = Problem(5, seq_q, 512, 7, 128, torch.float16, 128**-0.5)
    geometry = Geometry.of(config, problem)
    assert geometry.grid == (q_blocks, 7, 5)
    assert geometry.block == 32 * warps
    assert geometry.smem_bytes == 2 * 128 * (rows + 32 + 32)
