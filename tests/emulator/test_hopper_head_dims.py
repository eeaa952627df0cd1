# SPDX-License-Identifier: Apache-2.0
"""Hopper kernels of every head dimension, also of those that end within a panel."""

from __future__ import annotations

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.decode import choose_splits
from flash_attention.families.sm90.forward.heuristic import heuristic
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.launch.emulate import emulate
from flash_attention.reference.judge import Judge, check_lse, generate_qkv
from ptx_emulator import SCHEDULES
from tests.gate import EXHAUSTIVE, in_turn, one_in
from tests.hopper_configs import D_HEADS, square

SM90 = ARCHES["sm_90"]
BETWEEN = [d_head for d_head in range(16, 257, 16) if d_head not in D_HEADS]
TURNS = [
    pytest.param(
        *(d_head, causal, SCHEDULES[(2 * place + causal) % 3]),
        marks=() if place % 2 == 0 and causal == (place % 4 == 2) else EXHAUSTIVE,
    )
    for place, d_head in enumerate(BETWEEN)
    for causal in (False, True)
]


def check_clean(
    config: HopperForwardKernelConfig,
    shape: tuple[int, int],
    d: int,
    *,
    causal: bool = False,
    schedule: str = "lockstep",
    split_keys: int | None = None,
) -> None:
    seq_q, seq_k = shape
    qkv = generate_qkv(1, seq_q, 2, d, config.dtype, "cpu", d, seq_len_k=seq_k, n_heads_k=1)
    out = torch.full_like(qkv[0], torch.nan)
    seen = emulate(
        *(config, *qkv, out),
        causal=causal,
        return_lse=True,
        schedule=schedule,
        split_keys=split_keys,
    )
    assert list(map(str, seen.findings)) == []
    assert Judge(*qkv, causal=causal).check(out).ok
    assert seen.lse is not None
    assert check_lse(seen.lse, *qkv[:2], causal=causal).ok


def chosen(problem: Problem) -> HopperForwardKernelConfig:
    config = heuristic(problem, SM90)
    assert isinstance(config, HopperForwardKernelConfig)
    return config


@pytest.mark.parametrize(("d_head", "causal", "schedule"), TURNS)
def test_every_head_dimension_is_right(d_head: int, causal: bool, schedule: str) -> None:
    config = chosen(square(DType.BF16, d_head, 4096, causal))
    assert config.d_head == d_head
    check_clean(config, (70, 200), d_head, causal=causal, schedule=schedule)
    check_clean(config, (70, 200), d_head - 8, causal=causal, schedule=schedule)


@pytest.mark.parametrize("d_head", [80, 112])
def test_short_sequences_with_a_narrow_last_block(d_head: int, schedule: str) -> None:
    config = chosen(square(DType.FP16, d_head, 320 if d_head == 80 else 180))
    assert config.narrow_keys == 32
    keys = 2 * config.B_c + 5
    check_clean(config, (65, keys), d_head, schedule=schedule)


@pytest.mark.parametrize("d_head", one_in(2, [16, 80, 112, 208]))
def test_split_keys(d_head: int, schedule: str) -> None:
    problem = Problem(1, 3, 200, 2, 1, d_head, d_head, torch.bfloat16, softmax_scale=1.0)
    choice = choose_splits(problem, SM90, 132, 64)
    assert not isinstance(choice, str)
    check_clean(choice[0], (3, 200), d_head - 8, schedule=schedule, split_keys=64)


@pytest.mark.parametrize(("d_head", "tma"), in_turn([48, 80, 112], [False, True]))
def test_kernels_without_a_producer(d_head: int, tma: bool) -> None:
    config = HopperForwardKernelConfig(DType.FP16, d_head, consumers=2, B_c=64, stages=1, tma=tma)
    check_clean(config, (130, 70), d_head, causal=True)
