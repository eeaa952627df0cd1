# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, DEFAULT_ARCH
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.sm80.backward.config import (
    FlashBackwardKernelConfig,
    registers_needed,
)
from tests.unchecked import unchecked

VALID = FlashBackwardKernelConfig(
    DType.FP16, 128, 64, 64, 4, eager_load_blocks=True, register_operands=True
)


def test_a_valid_config_passes_everywhere() -> None:
    for arch in ARCHES.values():
        VALID.check(arch)


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        ({"dtype": "fp16"}, "dtype", "DType.FP16 or DType.BF16"),
        ({"d_head": 80}, "d_head", "use one of 32, 64, 96, 128, 192, 256"),
        ({"B_r": 16}, "B_r", "use one of 32, 64, 128"),
        ({"B_c": 256}, "B_c", "use one of 32, 64, 128"),
        ({"n_warps": 2}, "n_warps", "use one of 4, 8"),
        ({"stages": 3}, "stages", "use one of 1, 2"),
        ({"swizzled": 1}, "swizzled", "use True or False"),
        ({"n_warps": 8}, "warp_rows", "8 rows a warp; a tensor-core product has 16"),
        ({"B_r": 128}, "dq_warps", "use dq_warp_rows=32"),
        ({"d_head": 32, "B_r": 32, "dq_warp_rows": 32}, "dq_warps", "use dq_warp_rows=16"),
        ({"stages": 2, "eager_load_blocks": False}, "stages_need_eager", "or stages=1"),
        ({"column_warps": 2}, "registers_need_rows", "column_warps=2 warps need them"),
        ({"d_head": 256}, "registers", "a thread has 255"),
        ({"B_c": 128}, "registers", "a thread has 255"),
    ],
)
def test_each_rule_is_named_and_says_what_to_change(
    change: dict[str, Any], rule: str, says: str
) -> None:
    with pytest.raises(KernelConfigError) as error:
        replace(VALID, **change)
    assert error.value.rule == rule
    assert says in str(error.value)
    with pytest.raises(KernelConfigError) as again:
        unchecked(VALID, **change).check(DEFAULT_ARCH)
    assert str(again.value) == str(error.value)


@pytest.mark.parametrize(
    ("change", "arch", "rule"),
    [
        ({"stages": 2}, "sm_86", "shared_memory"),
        ({"stages": 2}, "sm_80", None),
        ({"vector_additions": True}, "sm_80", "vector_additions"),
        ({"vector_additions": True}, "sm_89", "vector_additions"),
        ({"vector_additions": True}, "sm_90", None),
        ({"vector_additions": True}, "sm_120", None),
    ],
)
def test_what_an_architecture_has(change: dict[str, Any], arch: str, rule: str | None) -> None:
    violation = replace(VALID, **change).broken_rule(ARCHES[arch])
    assert (violation and violation.rule) == rule


def test_registers_are_those_of_the_sums_and_the_scores() -> None:
    assert registers_needed(VALID) == 2 * 64 + 2 * 32 + 32
    wide = replace(VALID, d_head=256, column_warps=2, n_warps=8, register_operands=False)
    assert registers_needed(wide) == 2 * 64 + 64 + 32
