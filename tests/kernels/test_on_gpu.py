# SPDX-License-Identifier: Apache-2.0
"""The sm_80 kernels against the oracle on a GPU, at sizes that visit several key blocks."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from flash_attention import forward
from flash_attention.families.sm80.forward.space import sample_configs
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.device import current_arch
from flash_attention.reference.judge import Judge, generate_qkvo

pytestmark = pytest.mark.gpu

HEADS = 3
RUNGS = [
    pytest.param(rung.config, id=f"{dtype.name}-{d_head}-{rung.number}")
    for dtype in DType
    for d_head in (64, 128)
    for rung in get_ladder(dtype, d_head, HEADS)
    if isinstance(rung.config, FlashForwardKernelConfig)
]


def run_poisoned(cfg: FlashForwardKernelConfig, seq_len: int, seed: int) -> None:
    q, k, v, o = generate_qkvo(2, seq_len, HEADS, cfg.d_head, cfg.dtype, "cuda", seed)
    check = Judge(q, k, v).check(forward(cfg, q, k, v, o))
    assert check.ok, f"{cfg.short_form()}: {check}"


@pytest.mark.parametrize("seq_len", [128, 384, 1024])
@pytest.mark.parametrize("cfg", RUNGS)
def test_every_rung(cfg: FlashForwardKernelConfig, seq_len: int) -> None:
    run_poisoned(cfg, seq_len, seed=seq_len)


@pytest.mark.parametrize("part", range(8))
def test_two_hundred_random_configs(part: int) -> None:
    strides = (0, HEADS * 64, HEADS * 128)
    valid_here = (
        cfg
        for cfg in sample_configs(2024, current_arch(), strides)
        if cfg.static_row_stride in (0, HEADS * cfg.d_head)
    )
    for seed, cfg in enumerate(islice(valid_here, 25 * part, 25 * (part + 1))):
        run_poisoned(cfg, seq_len=256 + 128 * (seed % 3), seed=seed)


@pytest.mark.parametrize("cfg", RUNGS)
def test_twenty_runs_are_bitwise_equal(cfg: FlashForwardKernelConfig) -> None:
    q, k, v, o = generate_qkvo(4, 512, HEADS, cfg.d_head, cfg.dtype, "cuda")
    first = forward(cfg, q, k, v, o).clone()
    for _ in range(20):
        o.fill_(torch.nan)
        assert torch.equal(forward(cfg, q, k, v, o), first)


def test_large_scores_do_not_overflow() -> None:
    cfg = get_ladder(DType.BF16, 128, HEADS)[15].config
    q, k, v, o = generate_qkvo(1, 256, HEADS, 128, cfg.dtype, "cuda")
    q, k = q * 30, k * 30
    check = Judge(q, k, v).check(forward(cfg, q, k, v, o))
    assert check.ok, check
