# SPDX-License-Identifier: Apache-2.0
"""What the family chooses: a valid config as wide as need be, on every architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, Arch
from flash_attention.call.dtype import DType
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.heuristic import heuristic
from tests.hopper_configs import square

CHANGES: list[dict[str, Any]] = [
    {},
    {"window": (100, 0), "softcap": 30.0, "sinks": True},
    {"d_head": 96, "d_v": 40},
    {"d_head": 8, "d_v": 8},
    {"d_head": 136, "d_v": 136},
    {"d_head": 256, "d_v": 64},
    {"seq_q": 1, "d_head": 64, "d_v": 256},
    {"total_q": 900, "total_k": 800},
]


@pytest.mark.parametrize("arch", ARCHES.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_architecture_has_a_valid_config(change: dict[str, Any], arch: Arch) -> None:
    problem = replace(square(DType.BF16, 128, 512), **change)
    config = heuristic(problem, arch)
    assert isinstance(config, FlashBackwardKernelConfig)
    assert config.broken_rule(arch) is None
    assert config.dtype is DType.BF16
    assert config.vector_additions == (arch.capability >= (9, 0))


@pytest.mark.parametrize(
    ("d_head", "compiled"), [(8, 32), (40, 64), (72, 96), (104, 128), (136, 192), (200, 256)]
)
def test_a_kernel_is_as_wide_as_need_be(d_head: int, compiled: int) -> None:
    problem = square(DType.FP16, d_head, 512)
    for wider in (problem, replace(problem, d_head=8), replace(problem, d_v=8)):
        config = heuristic(wider, ARCHES["sm_86"])
        assert isinstance(config, FlashBackwardKernelConfig)
        assert config.d_head == compiled


def test_where_there_is_no_kernel_it_is_said_why() -> None:
    wide = heuristic(square(DType.FP16, 264, 512), ARCHES["sm_80"])
    assert wide == "sm_80 backward kernels have head dimensions up to 256"
    tight = replace(ARCHES["sm_86"], max_smem_per_cta=1024)
    assert heuristic(square(DType.FP16, 64, 512), tight) == (
        "no tile of sm_80 backward kernels has room in the shared memory of sm_86"
    )
