# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import get_arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import (
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)
from tests.families.sm90.backward.cases import config

BASE = HopperBackwardKernelConfig(DType.BF16, 128, 64, 128, 1)
WIDE = config(256, dq="workspace", derivative="exact", schedule="split")


@pytest.mark.parametrize(
    ("kernel", "change", "rule", "said"),
    [
        (BASE, {"d_head": 80}, "d_head", "d_head=80: use one of 32, 64, 96, 128, 160, 192, 256"),
        (
            BASE,
            {"derivative": True},
            "derivative",
            "derivative=True: use Derivative.EXACT or Derivative.ROUNDED or Derivative.PAIRS",
        ),
        (
            BASE,
            {"query_gradient": QueryGradient.NONE},
            "ds_stages",
            "ds_stages=1 with query_gradient=QueryGradient.NONE: use 0 with NONE, which passes no"
            " dS on, and 1 or 2 with the others",
        ),
        (
            BASE,
            {"schedule": Schedule.PAIRED},
            "schedule_needs_stages",
            "schedule=Schedule.PAIRED needs the next Q while this one is in use: use 2 stages or"
            " more, or Schedule.SERIAL",
        ),
        (
            BASE,
            {"tile_order": TileOrder.GROUPED},
            "group_heads",
            "group_heads=0 with tile_order=TileOrder.GROUPED: use 0 with ONE_EACH, and 1 or more"
            " with the others",
        ),
        (
            BASE,
            {"d_head": 64},
            "shared_query_gradient",
            "query_gradient=QueryGradient.ATOMIC gives each key warpgroup 64 queries and 64 columns"
            " of dQ, and B_r=64 and d_head=64 have enough for one: use B_r=128",
        ),
        (
            BASE,
            {"B_r": 128},
            "registers",
            "the accumulators, P and dS need about 312 registers a thread, a thread of a key"
            " warpgroup has 240: use a smaller B_r, another derivative than EXACT, or"
            " k_in_registers=False",
        ),
        (
            BASE,
            {"stages": 4, "ds_stages": 2, "query_gradient": QueryGradient.STAGED},
            "shared_memory",
            "the buffers of K, V, Q, dO, dS and gradients take 297472 bytes of shared memory, 65024"
            " more than a CTA of sm_90 may have (232448): use a smaller B_r, or fewer stages or"
            " ds_stages",
        ),
        (
            BASE,
            {"query_gradient": QueryGradient.ORDERED},
            "turns_need_a_counter",
            "query_gradient=QueryGradient.ORDERED with tile_order=TileOrder.ONE_EACH: use"
            " TileOrder.DYNAMIC, with which a tile starts after those that it waits for, whichever"
            " CTA starts first",
        ),
        (
            WIDE,
            {"schedule": Schedule.IN_PLACE},
            "split",
            "d_head=256 and B_c=64 with schedule=Schedule.IN_PLACE, whose warpgroups have the keys"
            " of a tile of 128 and their dK and dV: use schedule=Schedule.SPLIT for d_head over 128"
            " and B_c 64",
        ),
        (
            WIDE,
            {"query_gradient": QueryGradient.STAGED},
            "split",
            "query_gradient=QueryGradient.STAGED with schedule=Schedule.SPLIT: use"
            " QueryGradient.NONE or QueryGradient.WORKSPACE, or another schedule for d_head up to"
            " 128",
        ),
    ],
)
def test_a_broken_rule_is_named(kernel: Any, change: dict[str, Any], rule: str, said: str) -> None:
    with pytest.raises(KernelConfigError) as error:
        replace(kernel, **change)
    assert error.value.rule == rule
    assert str(error.value).removesuffix(f" [rule: {rule}]") == said


def test_other_architectures_are_refused() -> None:
    violation = BASE.broken_rule(get_arch("sm_80"))
    assert violation is not None
    assert violation.rule == "architecture"
    assert violation.message == (
        "a Hopper config needs sm_90 (H100, H200), this is sm_80: use a FlashBackwardKernelConfig"
    )


def test_the_derivative_with_p_in_fp32_fits_a_block_of_64_queries_only() -> None:
    with pytest.raises(KernelConfigError, match="need about 248 registers"):
        replace(BASE, d_head=64, B_r=128)
    replace(BASE, d_head=64, B_r=128, derivative=Derivative.ROUNDED)
