# SPDX-License-Identifier: Apache-2.0
"""What is selected: a valid config of the newest family that has one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, Arch
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm80.forward import heuristic as sm80
from flash_attention.families.sm90.forward import heuristic as sm90
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    HopperWideKernelConfig,
)
from tests.hopper_configs import square

SM90 = ARCHES["sm_90"]
OTHERS = [arch for name, arch in ARCHES.items() if name != "sm_90"]
CHANGES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (100, 0), "softcap": 30.0, "sinks": True},
    {"d_head": 96, "d_v": 40},
    {"d_head": 256, "d_v": 256},
    {"seq_q": 500, "seq_k": 77},
    {"heads_k": 4},
    {"total_q": 900, "total_k": 800},
]


@pytest.mark.parametrize("arch", OTHERS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_sm_90_gets_a_hopper_config_and_others_the_first_family(
    change: dict[str, Any], arch: Arch
) -> None:
    problem = replace(square(DType.BF16, 128, 512), **change)
    config = select_config(problem, arch)
    assert isinstance(config, FlashForwardKernelConfig)
    assert config == sm80.heuristic(problem, arch)
    assert config.broken_rule(arch) is None
    hopper = select_config(problem, SM90)
    assert isinstance(hopper, HopperForwardKernelConfig)
    assert hopper == sm90.heuristic(problem, SM90)


@pytest.mark.parametrize(
    "change",
    [{"seq_q": 1}, {"seq_k": 1}, {"seq_q": 0}, {"heads": 48}, {"batch": 0}],
    ids=lambda change: str(change),
)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_queries_and_keys_may_differ_on_sm_90(change: dict[str, Any], causal: bool) -> None:
    problem = replace(square(DType.FP16, 128, 512, causal), **change)
    assert isinstance(select_config(problem, SM90), HopperForwardKernelConfig)


@pytest.mark.parametrize("page_keys", [1, 64])
def test_pages_are_for_both_families(page_keys: int) -> None:
    problem = square(DType.FP16, 128, 512)
    problem = replace(problem, seqused_k=True, page_keys=page_keys, pages=8)
    assert isinstance(select_config(problem, SM90), HopperForwardKernelConfig)
    for arch in OTHERS:
        assert isinstance(select_config(problem, arch), FlashForwardKernelConfig)


def test_head_dimensions_over_256_are_for_hopper() -> None:
    wide = square(DType.FP16, 264, 512)
    assert isinstance(select_config(wide, SM90), HopperWideKernelConfig)
    for arch in OTHERS:
        message = (
            rf"no kernel runs .*d 264.* on {arch.name}: head dimensions over 256 need sm_90"
            r" \(H100, H200\); .*; sm_80 kernels have head dimensions up to 256"
        )
        with pytest.raises(UnsupportedError, match=message):
            select_config(wide, arch)


def test_a_head_dimension_of_no_family_is_refused_everywhere() -> None:
    for arch in ARCHES.values():
        message = (
            rf"no kernel runs .*d 520.* on {arch.name}: Hopper kernels have head dimensions up to"
            " 256; sm_80 kernels have head dimensions up to 256"
        )
        with pytest.raises(UnsupportedError, match=message):
            select_config(square(DType.FP16, 520, 512), arch)
