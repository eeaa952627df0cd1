# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.sm80.forward.space import sample_configs
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    TileOrder,
    get_kernels_to_build,
    parse_kernel_config,
)
from tests.hopper_configs import sample_hopper_configs


def test_short_forms_round_trip() -> None:
    configs = [
        *get_kernels_to_build(ARCHES["sm_90"]),
        *islice(sample_configs(7, row_strides=(0, 2048)), 500),
        *islice(sample_hopper_configs(7), 500),
    ]
    assert [parse_kernel_config(cfg.short_form()) for cfg in configs] == configs


def test_a_word_before_the_tile_names_the_family() -> None:
    assert parse_kernel_config("hopper(bf16, 128, 2, 96, 1): plain") == HopperForwardKernelConfig(
        DType.BF16, 128, 2, 96, 1
    )
    cfg = parse_kernel_config("hopper (FP16, 64, 3, 128, 2): prefetch_q+dynamic_32+specialised+tma")
    assert cfg == HopperForwardKernelConfig(
        DType.FP16,
        64,
        3,
        128,
        2,
        tma=True,
        specialised=True,
        tile_order=TileOrder.DYNAMIC,
        group_mib=32,
        prefetch_q=True,
    )


def test_groups_of_one_head_are_a_dynamic_order_too() -> None:
    config = HopperForwardKernelConfig(
        *(DType.FP16, 64, 2, 128, 2), tma=True, specialised=True, tile_order=TileOrder.DYNAMIC
    )
    assert config.short_form() == "hopper(FP16, 64, 2, 128, 2): tma+specialised+dynamic_0"
    assert parse_kernel_config(config.short_form()) == config
    assert config.broken_rule() is None


def test_spaces_and_word_order_do_not_matter() -> None:
    a = parse_kernel_config(" (bf16,128, 64,32 ,4) : load_2_2_0_tiles+swizzled+async ")
    b = parse_kernel_config("(BF16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles")
    assert a == b


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast please", "is not a kernel config; the form is"),
        ("(FP16, 128, 64, 4): async", "(FP16, 128, 64, 4) is no tile; it is (dtype, d_head, B_r,"),
        ("(FP16, 128, 64, 64, x): async", "whole numbers after the data type"),
        ("hopper(FP16, 128, 2, 128): tma", "it is (dtype, d_head, consumers, B_c, stages), whole"),
        ("(FP16, 128, 64, 64, 4): async+swizled", "did you mean 'swizzled'"),
        ("(FP16, 128, 64, 64, 4): load_2_2_tiles", "unknown word 'load_2_2_tiles'"),
        ("(FP16, 128, 2, 128, 2): plain", "unknown word 'plain'"),
        ("hoper(FP16, 128, 2, 128, 2): tma", "or 'hopper(FP16, 128, 2, 128, 2): tma"),
        ("hopper(FP16, 128, 2, 128, 2): tma+overlp", "did you mean 'overlap'"),
        ("hopper(FP16, 128, 2, 128, 2): tma+lazy", "did you mean 'lazy_N'"),
        ("hopper(FP16, 128, 2, 128, 2): plain+tma", "unknown word 'plain'"),
        ("hopper(FP16, 128, 2, 128, 2): swizzled", "unknown word 'swizzled'"),
    ],
)
def test_what_is_no_short_form_is_refused(text: str, says: str) -> None:
    with pytest.raises(KernelConfigError, match="short_form") as error:
        parse_kernel_config(text)
    assert says in str(error.value)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="fp32"):
        parse_kernel_config("(fp32, 128, 64, 64, 4): async")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "None is not a kernel config"),
        (f"(FP16, {'9' * 5000}, 64, 64, 4): async", r"\(FP16, 9{80,}\.\.\.?\) is no tile"),
        (f"(FP16, 64, 64, 64, 4): load_{'9' * 5000}_2_2_tiles", "unknown word 'load_9{80,}"),
        (f"hopper(FP16, 64, 2, 128, 2): lazy_{'9' * 5000}", "unknown word 'lazy_9{80,}"),
    ],
    ids=["none", "tile", "loads", "lazy"],
)
def test_numbers_without_end_are_refused(text: Any, why: str) -> None:
    with pytest.raises(KernelConfigError, match=why):
        parse_kernel_config(text)
