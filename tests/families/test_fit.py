# SPDX-License-Identifier: Apache-2.0
"""Rules that tie a problem to a config of any family: element types, columns, lengths, heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import Recipe
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)
from tests.families.problems import recipe_of

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
UNIFIED = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 1, tma=True)
HOPPER = replace(UNIFIED, specialised=True)
EVERYONE = (CONFIG, UNIFIED, HOPPER)
SHAPE = (2, 128, 4, 128)
GPU = torch.device("cuda", 0)


def recipe(
    config: KernelConfig,
    q: tuple[int, ...] = SHAPE,
    k: tuple[int, ...] | None = None,
    v: tuple[int, ...] | None = None,
    **keywords: Any,
) -> Recipe:
    """How a config answers a call of tensors without memory; raises if it does not fit."""
    shapes = (q, k or q, v or k or q)
    tensors = [torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes]
    call = Call(tensors[0], tensors[1], tensors[2], **keywords)
    problem, views = check_call(call, GPU)
    return recipe_of(config, problem, views=views, num_sms=132)


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=message)


@pytest.mark.parametrize("config", EVERYONE, ids=["first", "unified", "hopper"])
def test_plain_attention_fits_everyone(config: KernelConfig) -> None:
    assert recipe(config).features.words() == []


def test_sinks_fit_everyone() -> None:
    for config in EVERYONE:
        answer = recipe(config, sinks=torch.empty(4, device="meta"))
        assert answer.features.words() == ["sinks"]


@pytest.mark.parametrize(
    "shape", [(2, 1, 4, 128), (2, 77, 2, 128), (2, 0, 4, 128), (2, 1 << 30, 1, 128)]
)
def test_keys_may_have_another_length_and_fewer_heads(shape: tuple[int, ...]) -> None:
    for config in EVERYONE:
        arguments: Any = recipe(config, k=shape).arguments
        assert (arguments.seq_len_q, arguments.seq_len_k) == (128, shape[1])
        assert arguments.heads_per_kv == 4 // shape[2]


@pytest.mark.parametrize("shape", [(0, 128, 4, 128), (2, 0, 4, 128), (2, 128, 0, 128)])
def test_tensors_may_be_empty(shape: tuple[int, ...]) -> None:
    for config in EVERYONE:
        assert len(recipe(config, shape).steps) == 1


@pytest.mark.parametrize("d_head", [(8, 8), (40, 40), (128, 64), (64, 128), (72, 120)])
def test_a_kernel_takes_fewer_columns_than_it_was_compiled_for(d_head: tuple[int, int]) -> None:
    d_qk, d_v = d_head
    shapes = [(2, 128, 4, d) for d in (d_qk, d_qk, d_v)]
    for config in EVERYONE:
        arguments: Any = recipe(config, *shapes).arguments
        assert (arguments.d_qk, arguments.d_v) == d_head
    with refused("config is for d_head 128, the tensors have d_head"):
        recipe(replace(UNIFIED, tma=False), *shapes)


@pytest.mark.parametrize("config", [CONFIG, HOPPER], ids=["first", "hopper"])
def test_more_columns_than_the_kernel_was_compiled_for_are_refused(config: KernelConfig) -> None:
    wide = (2, 128, 4, 136)
    with refused(r"for d_head up to 128, q and k have d_head 136; pass a config with at least"):
        recipe(config, wide)
    with refused(r"for d_head up to 128, v has d_head 136"):
        recipe(config, SHAPE, SHAPE, wide)


@pytest.mark.parametrize("config", EVERYONE, ids=["first", "unified", "hopper"])
def test_tensors_of_another_dtype_are_refused(config: KernelConfig) -> None:
    with refused("config is for torch.bfloat16, the tensors are torch.float16"):
        recipe(config.in_dtype(DType.BF16))
