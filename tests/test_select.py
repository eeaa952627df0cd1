# SPDX-License-Identifier: Apache-2.0
"""What is selected: a valid config of the right family, and one that knows the problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES, Arch
from flash_attention.checks import TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.fit_checks import check_config_fits
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)
from flash_attention.select import group_mib, select_config
from tests.hopper_configs import D_HEADS, LENGTHS, selected, square

SM90 = ARCHES["sm_90"]
OTHERS = [arch for name, arch in ARCHES.items() if name != "sm_90"]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", D_HEADS)
def test_sm_90_gets_a_valid_hopper_config_at_every_length(
    d_head: int, causal: bool, dtype: DType
) -> None:
    for seq_len in (1, 77, *LENGTHS, 1 << 20):
        problem = replace(square(dtype, d_head, 512, causal), seq_q=seq_len, seq_k=seq_len)
        config = select_config(problem, SM90)
        assert isinstance(config, HopperForwardKernelConfig)
        assert config.broken_rule(SM90) is None
        assert (config.dtype, config.d_head) == (dtype, d_head)


def test_only_causal_problems_have_tiles_of_different_lengths() -> None:
    for config, causal in selected(DType.BF16):
        order = TileOrder.DYNAMIC if causal else TileOrder.PERSISTENT
        assert config.tile_order is order, config.short_form()


@pytest.mark.parametrize(
    "change",
    [{"seq_q": 1}, {"seq_k": 1}, {"seq_q": 0}, {"heads": 48}, {"batch": 0}],
    ids=lambda change: str(change),
)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_queries_and_keys_may_differ_on_sm_90(change: dict[str, Any], causal: bool) -> None:
    problem = replace(square(DType.FP16, 128, 512, causal), **change)
    assert isinstance(select_config(problem, SM90), HopperForwardKernelConfig)


@pytest.mark.parametrize("arch", OTHERS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("d_head", [64, 128])
def test_other_architectures_get_the_first_family(d_head: int, arch: Arch) -> None:
    problem = square(DType.BF16, d_head, 512)
    config = select_config(problem, arch)
    assert isinstance(config, FlashForwardKernelConfig)
    assert config.broken_rule(arch) is None
    shape = (problem.batch, problem.seq_q, problem.heads, d_head)
    strides = (problem.seq_q * problem.heads * d_head, problem.heads * d_head, d_head, 1)
    views = [
        TensorView(name, shape, strides, problem.dtype, torch.device("cpu")) for name in "qkvo"
    ]
    check_config_fits(config, problem, views)


@pytest.mark.parametrize(
    "change",
    [
        {"causal": True},
        {"d_head": 96},
        {"d_head": 256},
        {"seq_q": 500, "seq_k": 500},
        {"seq_q": 256},
        {"heads_k": 4},
    ],
    ids=lambda change: "-".join(change),
)
@pytest.mark.parametrize("arch", OTHERS, ids=lambda arch: arch.name)
def test_what_the_first_family_does_not_take_is_refused(change: dict[str, Any], arch: Arch) -> None:
    problem = replace(square(DType.FP16, 128, 512), **change)
    with pytest.raises(UnsupportedError, match=f"no kernel for .* on {arch.name}: sm_90 takes"):
        select_config(problem, arch)
    assert isinstance(select_config(problem, SM90), HopperForwardKernelConfig)


def test_a_head_dimension_of_neither_family_is_refused_everywhere() -> None:
    for arch in ARCHES.values():
        with pytest.raises(UnsupportedError, match="sm_90 takes d_head up to 256"):
            select_config(square(DType.FP16, 264, 512), arch)


def test_groups_are_powers_of_two_that_grow_with_the_keys_and_stay_in_l2() -> None:
    for d_head in D_HEADS:
        sizes = [group_mib(square(DType.BF16, d_head, n)) for n in (1, *LENGTHS)]
        assert all(size & (size - 1) == 0 for size in sizes)
        assert sizes[0] == 4
        assert max(sizes) <= 256
        heads = [
            size * (1 << 20) // (n * d_head * 4) for n, size in zip(LENGTHS, sizes[1:], strict=True)
        ]
        assert all(count >= 4 for count in heads), "a group of few heads does not balance a walk"
