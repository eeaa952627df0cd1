# SPDX-License-Identifier: Apache-2.0
"""What configs of every family have in common."""

from __future__ import annotations

import pytest

from flash_attention.arch import ARCHES
from flash_attention.errors import KernelConfigError
from flash_attention.families.config import is_config
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    parse_kernel_config,
)

FLASH = parse_kernel_config("(BF16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles")
HOPPER = parse_kernel_config("hopper(BF16, 128, 2, 32, 2): tma+specialised")


@pytest.mark.parametrize("config", [FLASH, HOPPER], ids=["flash", "hopper"])
def test_every_family_counts_alike(config: KernelConfig) -> None:
    assert config.attn_flop(2, 3, 64) == 4 * 2 * 3 * 64 * 64 * 128
    assert config.attn_flop(1, 1, 64, 128) == 4 * 64 * 128 * 128
    rows, blocks = 64, 128 // 32
    assert config.total_flop(1, 1, 64, 128) == (
        4 * 64 * 128 * 128 + 5 * rows * 128 + rows * blocks * (128 + 3) + rows * 128
    )


def test_a_last_block_that_is_not_full_rescales_too() -> None:
    assert HOPPER.total_flop(1, 1, 1, 33) == 4 * 33 * 128 + 5 * 33 + 2 * (128 + 3) + 128


@pytest.mark.parametrize("config", [FLASH, HOPPER], ids=["flash", "hopper"])
def test_a_config_of_any_family_is_one(config: KernelConfig) -> None:
    assert is_config(config)
    assert isinstance(config, KernelConfig)


@pytest.mark.parametrize("thing", [None, 3, "(FP16, 128, 64, 32, 4)", {}, FlashForwardKernelConfig])
def test_nothing_else_is_one(thing: object) -> None:
    assert not is_config(thing)


@pytest.mark.parametrize("config", [FLASH, HOPPER], ids=["flash", "hopper"])
def test_only_the_data_type_changes(config: KernelConfig) -> None:
    other = config.in_dtype(DType.FP16)
    assert type(other) is type(config)
    assert other.dtype is DType.FP16
    assert other.in_dtype(DType.BF16) == config


@pytest.mark.parametrize("config", [FLASH, HOPPER], ids=["flash", "hopper"])
def test_the_short_form_is_the_tile_and_the_words(config: KernelConfig) -> None:
    tile, words = ", ".join(map(str, config.tile())), "+".join(config.words())
    assert config.short_form() == f"{config.prefix}({tile}): {words}"


def test_a_config_is_checked_on_the_architecture_of_its_family_unless_one_is_given() -> None:
    HOPPER.check()
    FLASH.check()
    FLASH.check(ARCHES["sm_90"])
    with pytest.raises(KernelConfigError, match="needs sm_90") as caught:
        HOPPER.check(ARCHES["sm_80"])
    violation = HOPPER.broken_rule(ARCHES["sm_80"])
    assert violation is not None
    assert (violation.rule, caught.value.rule) == ("architecture", "architecture")
    assert HOPPER.broken_rule() is None


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("(BF16, 128, 64, 64, 4): async+swizzled+load_2_2_2_tiles", "sm_80"),
        ("(BF16, 256, 128, 128, 8): async+swizzled+load_2_2_2_tiles", "sm_90"),
        ("backward(BF16, 64, 64, 64, 4): swizzled", "sm_80"),
        ("backward(BF16, 64, 64, 64, 4): swizzled+vectors", "sm_90"),
        ("hopper_backward(BF16, 64, 128, 128, 2): dq_atomic+ds_1+rounded+serial+one_each", "sm_90"),
    ],
)
def test_the_default_architecture_is_the_oldest_that_a_config_is_valid_on(
    text: str, arch: str
) -> None:
    config = parse_kernel_config(text)
    assert config.default_arch.name == arch
    older = list(ARCHES.values())[: list(ARCHES).index(arch)]
    assert all(config.broken_rule(each) is not None for each in older)
    config.check()


def test_roles_and_row_strides_are_told_where_there_are_any() -> None:
    assert (FLASH.register_facts, FLASH.row_stride) == ({}, 0)
    assert list(HOPPER.register_facts) == ["registers of a producer", "registers of a consumer"]
    unified = HopperForwardKernelConfig(DType.BF16, 128, 2, 32, 1)
    assert (unified.register_facts, unified.row_stride) == ({}, 0)
    fixed = parse_kernel_config("(BF16, 128, 64, 32, 4): async+load_2_2_0_tiles+stride_2048")
    assert fixed.row_stride == 2048
