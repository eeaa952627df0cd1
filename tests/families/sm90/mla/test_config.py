# SPDX-License-Identifier: Apache-2.0
"""HopperMlaKernelConfig: its short form, its names, its rules, and that every field is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.errors import KernelConfigError
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.kernel_configs import DType
from tests.families.sm90.config_checks import (
    check_broken_rule,
    check_compiled,
    check_needs_sm90,
    check_read_back,
)
from tests.families.sm90.mla.cases import DEFERRED, EVERY_BLOCK, FULL, FULL_FP16, NARROW

ALL = [FULL, FULL_FP16, NARROW, EVERY_BLOCK, DEFERRED]


@pytest.mark.parametrize("config", ALL, ids=str)
def test_a_config_is_read_back_from_its_short_form_and_its_names(
    config: HopperMlaKernelConfig,
) -> None:
    check_read_back(config, "causal_heads_128_even")


def test_configs_are_ordered() -> None:
    assert sorted(ALL) == sorted(ALL, key=lambda c: (c.dtype, c.d_v, c.rescale_threshold))


def test_the_short_form_names_every_field() -> None:
    assert str(FULL) == "hopper_mla(BF16, 512): lazy_8+rotary_in_registers"
    assert str(EVERY_BLOCK) == "hopper_mla(BF16, 256): plain"
    with pytest.raises(KernelConfigError, match="unknown word 'lasy_8'; did you mean 'lazy_N'"):
        parse_kernel_config("hopper_mla(BF16, 512): lasy_8")


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({"d_v": 64}, "d_v", "d_v=64: use one of 128, 256, 384, 512"),
        ({"d_v": 576}, "d_v", "d_v=576: use one of"),
        ({"rescale_threshold": 16}, "rescale_threshold", "use an integer from 0 to 15"),
        ({"dtype": 3}, "dtype", "use DType"),
    ],
)
def test_a_rule_that_is_broken_is_named(changes: dict[str, Any], rule: str, message: str) -> None:
    check_broken_rule(FULL, changes, rule, message)


def test_other_architectures_have_no_such_kernel() -> None:
    check_needs_sm90(FULL, "an MLA config")


def test_q_and_two_blocks_of_k_fill_the_shared_memory() -> None:
    left = MEASURED_ARCH.max_smem_per_cta - FULL.smem_bytes()
    assert 0 <= left < 64 * FULL.d_head * 2


def test_flop_count_both_products() -> None:
    assert FULL.attn_flop(2, 16, 1, 1000) == 2 * 2 * 16 * 1000 * (576 + 512)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": DType.FP16},
        {"d_v": 256},
        {"rescale_threshold": 0},
        {"rotary_in_registers": True},
        {"defer_values": True},
    ],
    ids=str,
)
def test_every_field_changes_what_is_compiled(changes: dict[str, Any]) -> None:
    check_compiled(NARROW, changes)
