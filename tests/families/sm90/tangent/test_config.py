# SPDX-License-Identifier: Apache-2.0
"""HopperTangentKernelConfig: its short form, its names, its rules, and that fields are compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention import TileOrder
from flash_attention.families.sm90.tangent.config import HopperTangentKernelConfig
from flash_attention.kernel_configs import DType
from tests.families.sm90.config_checks import (
    check_broken_rule,
    check_compiled,
    check_needs_sm90,
    check_read_back,
)
from tests.families.sm90.tangent.cases import USUAL

THREE = replace(USUAL, consumers=3, B_c=48, stages=4)
ONE_EACH = replace(USUAL, stages=1, rescale_threshold=0, tile_order=TileOrder.ONE_EACH, group_mib=0)


@pytest.mark.parametrize("config", [USUAL, THREE, ONE_EACH], ids=str)
def test_a_config_is_read_back_from_its_short_form_and_its_names(
    config: HopperTangentKernelConfig,
) -> None:
    check_read_back(config, "causal")


def test_the_short_form_names_every_field() -> None:
    assert str(USUAL) == "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+dynamic_32"
    assert str(ONE_EACH) == "hopper_tangent(BF16, 64, 2, 96, 1): one_each"


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({"d_head": 96}, "d_head", "d_head=96: use one of 64, 128"),
        ({"consumers": 1}, "consumers", "use one of 2, 3"),
        ({"B_c": 112, "stages": 4}, "shared_memory", "and their tangents take 262400 bytes"),
        ({"B_c": 128}, "registers", "need about 256 registers a thread, .* 2 consumers has 240"),
        ({"consumers": 3}, "registers", "consumers has 160: use a smaller B_c or fewer consumers"),
        ({"dtype": DType.FP16}, "rescale_threshold", "may not fit float16: set rescale_thre"),
        ({"tile_order": TileOrder.PERSISTENT}, "group_mib", "group_mib=32 is for tile_order"),
    ],
)
def test_a_rule_that_is_broken_is_named(changes: dict[str, Any], rule: str, message: str) -> None:
    check_broken_rule(USUAL, changes, rule, message)


def test_other_architectures_have_no_such_kernel() -> None:
    check_needs_sm90(USUAL, "a config of tangents")


@pytest.mark.slow  # left out of `make quick`
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": DType.FP16, "rescale_threshold": 0},
        {"d_head": 128, "B_c": 64},
        {"consumers": 3, "B_c": 48},
        {"B_c": 80},
        {"stages": 3},
        {"rescale_threshold": 4},
        {"tile_order": TileOrder.PERSISTENT, "group_mib": 0},
        {"tile_order": TileOrder.ONE_EACH, "group_mib": 0},
        {"group_mib": 16},
    ],
    ids=str,
)
def test_every_field_is_compiled(changes: dict[str, Any]) -> None:
    base = replace(USUAL, B_c=48) if changes.get("consumers") == 3 else USUAL
    check_compiled(base, changes)
