# SPDX-License-Identifier: Apache-2.0
"""HopperWideKernelConfig: its short form, its names, its rules, and that fields are compiled."""

from __future__ import annotations

from typing import Any

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.errors import KernelConfigError
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.kernel_configs import DType
from tests.families.sm90.config_checks import (
    check_broken_rule,
    check_compiled,
    check_needs_sm90,
    check_read_back,
)
from tests.families.sm90.wide.cases import EVERY_BLOCK, FULL, FULL_FP16, MIDDLE, NARROW

ALL = [FULL, FULL_FP16, MIDDLE, NARROW, EVERY_BLOCK]


@pytest.mark.parametrize("config", ALL, ids=str)
def test_a_config_is_read_back_from_its_short_form_and_its_names(
    config: HopperWideKernelConfig,
) -> None:
    check_read_back(config, "causal_heads_8_even")


def test_the_short_form_names_every_field() -> None:
    assert str(FULL) == "hopper_wide(BF16, 512, 512): lazy_8"
    assert str(EVERY_BLOCK) == "hopper_wide(BF16, 128, 128): plain"
    with pytest.raises(KernelConfigError, match="unknown word 'lasy_8'; did you mean 'lazy_N'"):
        parse_kernel_config("hopper_wide(BF16, 512, 512): lasy_8")
    with pytest.raises(KernelConfigError, match=r"it is \(dtype, d_head, d_v\), whole numbers"):
        parse_kernel_config("hopper_wide(BF16, 512): plain")


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({"d_head": 80}, "d_head", "d_head=80: use "),
        ({"d_head": 576}, "d_head", "d_head=576: use "),
        ({"d_v": 64}, "d_v", "d_v=64: use "),
        ({"rescale_threshold": 16}, "rescale_threshold", "use an integer from 0 to 15"),
        ({"dtype": 3}, "dtype", "use DType"),
    ],
)
def test_a_rule_that_is_broken_is_named(changes: dict[str, Any], rule: str, message: str) -> None:
    check_broken_rule(FULL, changes, rule, message)


def test_other_architectures_have_no_such_kernel() -> None:
    check_needs_sm90(FULL, "a config of wide heads")


def test_q_k_v_and_p_fit_the_shared_memory_but_no_second_block_does() -> None:
    left = MEASURED_ARCH.max_smem_per_cta - FULL.smem_bytes()
    assert 0 <= left < 64 * FULL.d_head * 2


def test_work_counts_the_columns_of_both_products() -> None:
    config = HopperWideKernelConfig(DType.BF16, 320, 512)
    assert config.attn_flop(2, 16, 10, 1000) == 2 * 2 * 16 * 10 * 1000 * (320 + 512)
    assert (config.loaded_columns, config.value_columns) == (320 + 512, 512)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"dtype": DType.FP16}, {"d_head": 192}, {"d_v": 256}, {"rescale_threshold": 0}],
    ids=str,
)
def test_every_field_changes_what_is_compiled(changes: dict[str, Any]) -> None:
    check_compiled(NARROW, changes)
