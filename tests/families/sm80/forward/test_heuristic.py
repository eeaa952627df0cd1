# SPDX-License-Identifier: Apache-2.0
"""What the sm_80 family chooses: a valid config as wide as need be, or why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, Arch
from flash_attention.call.problem import Problem
from flash_attention.families.sm80.forward.heuristic import heuristic
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from tests.families.problems import recipe_of
from tests.hopper_configs import square

CHANGES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (100, 0), "softcap": 30.0, "sinks": True},
    {"d_head": 96, "d_v": 40},
    {"d_head": 8, "d_v": 8},
    {"d_head": 136, "d_v": 136},
    {"d_head": 256, "d_v": 256},
    {"seq_q": 1, "d_head": 256, "d_v": 256},
    {"seq_q": 500, "seq_k": 77},
    {"heads_k": 4},
    {"total_q": 900, "total_k": 800},
]


def chosen(problem: Problem, arch: Arch = ARCHES["sm_80"]) -> FlashForwardKernelConfig:
    config = heuristic(problem, arch)
    assert isinstance(config, FlashForwardKernelConfig)
    return config


@pytest.mark.parametrize("arch", ARCHES.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_architecture_has_a_valid_config_that_fits(
    change: dict[str, Any], arch: Arch
) -> None:
    problem = replace(square(DType.BF16, 128, 512), **change)
    config = chosen(problem, arch)
    assert config.broken_rule(arch) is None
    assert config.dtype is DType.BF16
    assert config.d_head >= max(problem.d_head, problem.d_v)
    assert len(recipe_of(config, problem, arch=arch).steps) == 1


@pytest.mark.parametrize(
    ("d_head", "compiled"), [(8, 64), (64, 64), (72, 128), (136, 192), (200, 256)]
)
def test_a_kernel_is_as_wide_as_need_be(d_head: int, compiled: int) -> None:
    problem = square(DType.FP16, d_head, 512)
    for wider in (problem, replace(problem, d_head=8), replace(problem, d_v=8)):
        assert chosen(wider).d_head == compiled


@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_few_queries_get_short_tiles(d_head: int) -> None:
    problem = square(DType.FP16, d_head, 512)
    rows = [chosen(replace(problem, seq_q=n), ARCHES["sm_86"]).B_r for n in (1, 64, 65)]
    assert rows == [64, 64, 128]


def test_where_there_is_no_kernel_it_is_said_why() -> None:
    plain = square(DType.FP16, 128, 512)
    paged = replace(plain, seqused_k=True, page_keys=24, pages=8)
    assert heuristic(paged, ARCHES["sm_80"]) == heuristic(plain, ARCHES["sm_80"])
    wide = heuristic(square(DType.FP16, 264, 512), ARCHES["sm_80"])
    assert wide == "sm_80 kernels have head dimensions up to 256"
    tight = replace(ARCHES["sm_86"], max_smem_per_cta=1024)
    assert "more than a CTA of sm_86 may have" in str(heuristic(plain, tight))
