# SPDX-License-Identifier: Apache-2.0
"""Which config a problem gets: valid, wide enough, and the same for calls that differ little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.problem import Problem
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import check_features_fit
from flash_attention.kernel_configs import (
    HopperForwardKernelConfig,
    TileOrder,
)

PROBLEM = Problem(
    batch=2,
    seq_q=512,
    seq_k=512,
    heads=4,
    heads_k=4,
    d_head=128,
    d_v=128,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
)
FEATURES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (100, 0)},
    {"softcap": 30.0},
    {"sinks": True},
    {"total_q": 900, "total_k": 900},
    {"seqused_k": True, "causal": True},
]


def hopper(problem: Problem) -> HopperForwardKernelConfig:
    config = select_config(problem, ARCHES["sm_90"])
    assert isinstance(config, HopperForwardKernelConfig)
    return config


@pytest.mark.parametrize("seq", [1, 512, 8192])
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_a_selected_config_is_valid_and_serves_the_features(
    features: dict[str, Any], d_head: int, seq: int
) -> None:
    problem = replace(PROBLEM, seq_q=seq, seq_k=seq, d_head=d_head, d_v=d_head, **features)
    config = hopper(problem)
    config.check(ARCHES["sm_90"])
    check_features_fit(config, problem.features)
    assert config.d_head == d_head


@pytest.mark.parametrize(
    ("d_qk", "d_v", "compiled"),
    [
        (8, 8, 64),
        (40, 40, 64),
        (72, 40, 96),
        (40, 72, 96),
        (80, 80, 96),
        (104, 104, 128),
        (192, 128, 192),
        (136, 200, 256),
        (256, 8, 256),
    ],
)
def test_a_kernel_is_as_wide_as_the_wider_of_two_head_dimensions(
    d_qk: int, d_v: int, compiled: int
) -> None:
    assert hopper(replace(PROBLEM, d_head=d_qk, d_v=d_v)).d_head == compiled


def test_masks_get_the_tiles_by_length() -> None:
    assert hopper(PROBLEM).tile_order is TileOrder.PERSISTENT
    for mask in ({"causal": True}, {"window": (100, 0)}):
        assert hopper(replace(PROBLEM, **mask)).tile_order is TileOrder.DYNAMIC


def test_packed_entries_of_any_length_have_one_config() -> None:
    packed = replace(PROBLEM, total_q=900, total_k=900)
    for mask in ({}, {"causal": True}, {"window": (100, 0)}):
        assert len({hopper(replace(packed, seq_k=n, **mask)) for n in (512, 4096, 65536)}) == 1


def test_wider_heads_than_256_have_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match="d_head is at most 256"):
        hopper(replace(PROBLEM, d_v=264))
