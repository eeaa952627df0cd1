# SPDX-License-Identifier: Apache-2.0
"""HopperFp8KernelConfig: its short form, its names, its rules, and that every field is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.errors import KernelConfigError
from flash_attention.families.parse import parse_kernel_config, parse_kernel_name
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.fp8.transpose import TransposeConfig
from flash_attention.kernel_configs import DType, TileOrder
from tests.families.sm90.config_checks import (
    check_broken_rule,
    check_compiled,
    check_needs_sm90,
    check_read_back,
)
from tests.families.sm90.fp8.cases import LINEAR, OVERLAPPED, PLAIN, SERIAL, WIDE

TRANSPOSED = replace(OVERLAPPED, values_transposed=True)


@pytest.mark.parametrize("config", [OVERLAPPED, SERIAL, WIDE, LINEAR, PLAIN, TRANSPOSED], ids=str)
def test_a_config_is_read_back_from_its_short_form_and_its_names(
    config: HopperFp8KernelConfig,
) -> None:
    check_read_back(config, "causal")


def test_the_short_form_names_every_switch() -> None:
    assert str(OVERLAPPED) == (
        "hopper_fp8(BF16, 128, 2, 64, 2): q_in_registers+overlap+tensor_sums+promote_2+dynamic_4"
    )
    assert str(TRANSPOSED) == (
        "hopper_fp8(BF16, 128, 2, 64, 2):"
        " q_in_registers+overlap+tensor_sums+promote_2+values_transposed+dynamic_4"
    )
    with pytest.raises(KernelConfigError, match="unknown word 'overlop'; did you mean 'overlap'"):
        parse_kernel_config("hopper_fp8(BF16, 128, 2, 64, 2): overlop")


def test_the_kernel_that_transposes_has_a_name_too() -> None:
    name = "flash_transpose_kernel_d128_tensor_sums"
    assert parse_kernel_name(name) == TransposeConfig(128, tensor_sums=True)
    by_length = TransposeConfig(128, tensor_sums=False, per_batch=True)
    assert parse_kernel_name("flash_transpose_kernel_d128_per_batch") == by_length
    shared = TransposeConfig(128, False, per_batch=True, page_keys=16, least_queries=129)
    assert parse_kernel_name(shared.kernel_name()) == shared
    of_pages = TransposeConfig(64, tensor_sums=True, per_batch=True, page_keys=16)
    assert parse_kernel_name("transpose_d64_tensor_sums_per_batch_page_16") == of_pages
    assert of_pages.kernel_name() == "transpose_d64_tensor_sums_per_batch_page_16"
    assert parse_kernel_name("transpose_d64") == TransposeConfig(64, tensor_sums=False)


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({"d_head": 96}, "d_head", "d_head=96: use one of 64, 128, 256"),
        ({"consumers": 1}, "consumers", "consumers=1: use one of 2, 3"),
        ({"B_c": 80}, "B_c", "B_c=80: use a multiple of 32 from 32 to 256"),
        ({"promote_blocks": 100}, "promote_blocks", "use an integer from 0 to 64"),
        ({"d_head": 256}, "tensor_sums", "products of 264 columns, and one has at most 256"),
        (
            {"linear_groups": 2, "tensor_sums": False},
            "linear_groups_need_tensor_sums",
            "linear_groups=2 makes weights that only the tensor cores sum",
        ),
        (
            {"values_transposed": True, "B_c": 96},
            "values_transposed",
            "values_transposed=True loads panels of 64 keys, B_c=96: use a multiple of 64",
        ),
        ({"tile_order": TileOrder.PERSISTENT}, "group_mib", "set group_mib=0"),
        ({"B_c": 256, "stages": 4}, "shared_memory", "the buffers of Q, K, V and the copy of O"),
        ({"B_c": 192}, "registers", "use a smaller B_c"),
    ],
)
def test_a_rule_that_is_broken_is_named(changes: dict[str, Any], rule: str, message: str) -> None:
    check_broken_rule(OVERLAPPED, changes, rule, message)


def test_other_architectures_have_no_such_kernel() -> None:
    check_needs_sm90(OVERLAPPED, "an FP8 config")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": DType.FP16},
        {"d_head": 64},
        {"consumers": 3, "B_c": 32},
        {"B_c": 96},
        {"stages": 3},
        {"q_buffers": 2},
        {"q_in_registers": False},
        {"overlap": False},
        {"tensor_sums": False},
        {"linear_groups": 1},
        {"promote_blocks": 0},
        {"values_transposed": True},
        {"tile_order": TileOrder.PERSISTENT, "group_mib": 0},
        {"group_mib": 8},
    ],
    ids=str,
)
def test_every_field_changes_what_is_compiled(changes: dict[str, Any]) -> None:
    check_compiled(OVERLAPPED, changes)
