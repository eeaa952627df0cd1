# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES, DEFAULT_ARCH
from flash_attention.errors import KernelConfigError
from flash_attention.families.sm80.forward.config import registers_needed
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from tests.unchecked import unchecked

VALID = FlashForwardKernelConfig(DType.FP16, 128, 64, 64, 4, True, True, True, 2, 2, 2, True, True)


def test_a_valid_config_passes_everywhere() -> None:
    for arch in ARCHES.values():
        assert VALID.broken_rule(arch) is None
        VALID.check(arch)


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        ({"dtype": "fp16"}, "dtype", "DType.FP16 or DType.BF16"),
        ({"d_head": 96}, "d_head", "d_head=96: use one of 64, 128, 192, 256"),
        ({"d_head": 128.0}, "d_head", "d_head=128.0: use one of 64, 128, 192, 256"),
        ({"d_head": 192, "folded_addresses": True}, "folded_rows", "set column_panels=True"),
        ({"d_head": 256, "B_r": 128}, "registers", "a thread has 255"),
        ({"B_r": 32}, "B_r", "use one of 64, 128"),
        ({"B_c": 48}, "B_c", "use one of 32, 64, 128"),
        ({"n_warps": 2}, "n_warps", "use one of 4, 8"),
        ({"n_warps": 8}, "warp_rows", "use 8 warps only with B_r=128"),
        ({"K_mma_load_K_tiles": 3}, "K_mma_load_K_tiles", "use one of 0, 1, 2"),
        ({"Q_mma_load_K_tiles": True}, "Q_mma_load_K_tiles", "use one of 0, 1, 2"),
        ({"swizzled": 1}, "swizzled", "use True or False"),
        ({"static_row_stride": 12.0}, "static_row_stride", "use an integer"),
        ({"static_row_stride": 100}, "static_row_stride", "multiple of 8"),
        ({"static_row_stride": 64}, "static_row_stride", "at least d_head=128"),
        ({"static_row_stride": -8}, "static_row_stride", "multiple of 8"),
        ({"static_row_stride": 2**31}, "static_row_stride", "less than 2**31"),
        ({"async_copy": False}, "eager_needs_async", "set async_copy=True"),
        (
            {"Q_mma_load_K_tiles": 0, "K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0},
            "double_buffer_needs_tiles",
            "set one of Q/K/V_mma_load_K_tiles",
        ),
        ({"B_r": 128, "B_c": 128}, "registers", "a thread has 255"),
    ],
)
def test_each_rule_is_named_and_says_what_to_change(
    change: dict[str, Any], rule: str, says: str
) -> None:
    with pytest.raises(KernelConfigError) as error:
        replace(VALID, **change)
    assert error.value.rule == rule
    with pytest.raises(KernelConfigError) as again:
        unchecked(VALID, **change).check(DEFAULT_ARCH)
    assert str(again.value) == str(error.value)
    assert says in str(error.value)
    assert f"[rule: {rule}]" in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"d_head": 192},
        {"d_head": 192, "folded_addresses": True, "column_panels": True},
        {"d_head": 192, "folded_addresses": True, "swizzled": False},
        {"d_head": 256, "folded_addresses": True},
    ],
    ids=str,
)
def test_wide_heads_are_valid_everywhere(change: dict[str, Any]) -> None:
    for arch in ARCHES.values():
        assert replace(VALID, **change).broken_rule(arch) is None


def test_shared_memory_depends_on_the_architecture() -> None:
    big = replace(VALID, B_r=128, B_c=128, n_warps=8)
    assert big.smem_bytes() == 98304
    small = replace(ARCHES["sm_86"], max_smem_per_cta=64 * 1024)
    assert big.broken_rule(ARCHES["sm_86"]) is None
    violation = big.broken_rule(small)
    assert violation is not None
    assert violation.rule == "shared_memory"
    assert "98304 bytes" in violation.message
    assert "32768 more than" in violation.message


def test_the_register_estimate_counts_the_accumulators() -> None:
    rows_of_q_held = replace(VALID, Q_mma_load_K_tiles=0, K_mma_load_K_tiles=2)
    assert registers_needed(rows_of_q_held) - registers_needed(VALID) == 16 * (128 - 16) // 64
    wide = replace(VALID, B_r=128)
    assert registers_needed(wide) > 128 + 64


def test_a_config_is_made_if_any_architecture_has_room_for_it() -> None:
    needs_227_kib = replace(VALID, d_head=256, B_r=128, n_warps=8, B_c=128, Q_mma_load_K_tiles=1)
    assert needs_227_kib.smem_bytes() == 192 * 1024
    assert needs_227_kib.broken_rule(ARCHES["sm_90"]) is None
    violation = needs_227_kib.broken_rule(ARCHES["sm_80"])
    assert violation is not None
    assert violation.rule == "shared_memory"
