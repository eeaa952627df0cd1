# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from itertools import islice
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.dtype import DType
from flash_attention.call.features import CAUSAL
from flash_attention.errors import KernelConfigError
from flash_attention.families.parse import parse_kernel_config, parse_kernel_name
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.space import sample_configs

CONFIG = FlashBackwardKernelConfig(
    DType.BF16, 128, 64, 128, 8, stages=2, eager_load_blocks=True, register_operands=True
)
parse_name = FlashBackwardKernelConfig.from_name
SAMPLE = list(islice(sample_configs(1, ARCHES["sm_90"]), 40))


def test_configs_are_frozen_hashable_and_ordered() -> None:
    with pytest.raises(FrozenInstanceError):
        CONFIG.B_r = 128  # type: ignore[misc]
    other = replace(CONFIG, dtype=DType.FP16)
    assert sorted({CONFIG, other, replace(CONFIG)}) == [other, CONFIG]


def test_the_short_form_says_every_field() -> None:
    assert str(CONFIG) == (
        "backward(BF16, 128, 64, 128, 8): columns_1+stages_2+load_1+dq_16+registers+eager"
    )


@pytest.mark.parametrize("config", SAMPLE, ids=str)
def test_short_forms_and_names_are_read_back(config: FlashBackwardKernelConfig) -> None:
    assert parse_kernel_config(config.short_form()) == config
    assert parse_name(config.kernel_name()) == config
    assert parse_name(f"{config.kernel_name()}_causal_only_dq") == config
    entry = re.search(r"flash_\w+(?=\()", unit_of(config, CAUSAL).source)
    assert entry is not None
    assert parse_kernel_name(entry[0]) == config


def test_an_unknown_word_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(KernelConfigError, match="unknown word 'swizled'; did you mean 'swizzled'"):
        parse_kernel_config("backward(BF16, 128, 64, 128, 8): swizled")
    assert parse_name("fp16_d128_64x32_w4_async_load_2_2_0_tiles") is None


@pytest.mark.parametrize(
    ("d_head", "change", "expected"),
    [
        (128, {}, 2 * 128 * 256 + 2 * (2 * 64 * 256 + 512) + 128 * 128),
        (128, {"stages": 1}, 2 * 128 * 256 + 2 * 64 * 256 + 512 + 128 * 128),
        (128, {"register_operands": False}, 2 * 128 * 256 + 2 * (2 * 64 * 256 + 512) + 2 * 16384),
        (96, {"B_r": 32, "n_warps": 4, "B_c": 64}, 2 * 64 * 256 + 2 * (2 * 32 * 256 + 256) + 8192),
    ],
)
def test_shared_memory_counts_whole_panels(
    d_head: int, change: dict[str, Any], expected: int
) -> None:
    assert replace(CONFIG, d_head=d_head, **change).smem_bytes() == expected


def test_flop_are_those_of_five_products() -> None:
    assert CONFIG.attn_flop(2, 3, 100, 200) == 10 * 2 * 3 * 100 * 200 * 128
