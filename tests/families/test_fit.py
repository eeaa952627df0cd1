# SPDX-License-Identifier: Apache-2.0
"""What each family and kind of kernel is for, and what a call that does not fit is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.call.call import DEFAULTS, NO_EXTRAS, Extras, Options
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind, SplitKind
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import check_config_fits, check_features_fit
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
UNIFIED = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 1, tma=True)
HOPPER = replace(UNIFIED, specialised=True)
SHAPE = (2, 128, 4, 128)


def view(name: str, shape: tuple[int, ...]) -> TensorView:
    strides = torch.empty(shape, device="meta").stride()
    return TensorView(name, shape, strides, torch.float16, torch.device("cuda", 0))


def check(
    config: KernelConfig,
    q: tuple[int, ...] = SHAPE,
    k: tuple[int, ...] | None = None,
    v: tuple[int, ...] | None = None,
    *,
    options: Options = DEFAULTS,
    extras: Extras = NO_EXTRAS,
) -> None:
    k = k or q
    v = v or k
    views = [view(n, s) for n, s in zip("qkvo", (q, k, v, (*q[:-1], v[-1])), strict=True)]
    problem = Problem.from_tensors(*views[:3], options=options, extras=extras)
    check_config_fits(config, problem, views)


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=message)


@pytest.mark.parametrize("config", [CONFIG, UNIFIED, HOPPER], ids=["first", "unified", "hopper"])
def test_plain_attention_fits_everyone(config: KernelConfig) -> None:
    check(config)
    check_features_fit(config, PLAIN)


@pytest.mark.parametrize(
    ("features", "asked"),
    [
        (CAUSAL, "causal=True is asked for"),
        (Features(MaskKind.WINDOW), "a window is asked for"),
        (Features(softcap=True), "softcap is asked for"),
        (Features(per_batch=True), "a length of its own for every batch entry is asked for"),
        (
            Features(MaskKind.WINDOW, True, True),
            "a window, softcap and a length .* are asked",
        ),
    ],
)
def test_hopper_kernels_without_a_producer_know_a_causal_mask_at_most(
    features: Features, asked: str
) -> None:
    check_features_fit(HOPPER, features)
    check_features_fit(CONFIG, features)
    if features == CAUSAL:
        check_features_fit(UNIFIED, features)
    else:
        with refused(f"{asked}.* without a producer .* pass a config with specialised=True"):
            check_features_fit(UNIFIED, features)


@pytest.mark.parametrize(
    ("features", "asked"),
    [
        (Features(MaskKind.CAUSAL, splits=SplitKind.EVEN), "split_keys is asked for"),
        (Features(heads_together=4), "a tile of several heads is asked for"),
        (Features(per_batch=True, page_keys=64), "block_table is asked for"),
        (
            Features(splits=SplitKind.CHUNKED, page_keys=64),
            "split_keys and block_table are asked for",
        ),
    ],
)
def test_chunks_and_pages_are_for_the_hopper_family(features: Features, asked: str) -> None:
    check_features_fit(HOPPER, features)
    with refused(rf"^{asked}.*FlashForwardKernelConfig.* pass a HopperForwardKernelConfig.*sm_90"):
        check_features_fit(CONFIG, features)


def test_sinks_fit_everyone() -> None:
    for config in (CONFIG, UNIFIED, HOPPER):
        check(config, extras=Extras(sinks=torch.zeros(4)))


@pytest.mark.parametrize(
    "shape", [(2, 1, 4, 128), (2, 77, 2, 128), (2, 0, 4, 128), (2, 1 << 30, 1, 128)]
)
def test_keys_may_have_another_length_and_fewer_heads(shape: tuple[int, ...]) -> None:
    for config in (CONFIG, UNIFIED, HOPPER):
        check(config, k=shape)


@pytest.mark.parametrize("shape", [(0, 128, 4, 128), (2, 0, 4, 128), (2, 128, 0, 128)])
def test_tensors_may_be_empty(shape: tuple[int, ...]) -> None:
    for config in (CONFIG, UNIFIED, HOPPER):
        check(config, shape)


@pytest.mark.parametrize("dim", ["batch", "heads"])
def test_the_sides_of_a_grid_have_a_limit(dim: str) -> None:
    shape = (65536, 128, 4, 128) if dim == "batch" else (2, 128, 65536, 128)
    check(HOPPER, shape)
    with refused(rf"{dim} is 65536; a launch takes at most 65535, split the tensors along {dim}"):
        check(CONFIG, shape)


def test_a_flat_grid_has_a_limit_too() -> None:
    with refused("2147483648 tiles of 128 rows of one head; a launch"):
        check(HOPPER, (1 << 15, 128 << 15, 2, 128))


@pytest.mark.parametrize("d_head", [(8, 8), (40, 40), (128, 64), (64, 128), (72, 120)])
def test_a_kernel_takes_fewer_columns_than_it_was_compiled_for(d_head: tuple[int, int]) -> None:
    d_qk, d_v = d_head
    shapes = [(2, 128, 4, d) for d in (d_qk, d_qk, d_v)]
    for config in (CONFIG, UNIFIED, HOPPER):
        check(config, *shapes)
    with refused("config is for d_head 128, the tensors have d_head"):
        check(replace(UNIFIED, tma=False), *shapes)


@pytest.mark.parametrize("config", [CONFIG, HOPPER], ids=["first", "hopper"])
def test_more_columns_than_the_kernel_was_compiled_for_are_refused(config: KernelConfig) -> None:
    wide = (2, 128, 4, 136)
    with refused(r"for d_head up to 128, q and k have d_head 136; pass a config with at least"):
        check(config, wide)
    with refused(r"for d_head up to 128, v has d_head 136"):
        check(config, SHAPE, SHAPE, wide)


def test_tensors_of_another_dtype_are_refused() -> None:
    with refused("config is for torch.bfloat16, the tensors are torch.float16"):
        check(replace(HOPPER, dtype=DType.BF16))


@pytest.mark.parametrize("name", list("qkvo"))
def test_a_static_row_stride_binds_all_four_tensors(name: str) -> None:
    config = replace(CONFIG, static_row_stride=512)
    tensors = {n: view(n, SHAPE) for n in "qkvo"}
    problem = Problem.from_tensors(tensors["q"], tensors["k"], tensors["v"])
    check_config_fits(config, problem, list(tensors.values()))
    tensors[name] = replace(tensors[name], strides=(128, 256, 32768, 1))
    with refused(rf"512 elements apart .* rows of {name} are 256 apart"):
        check_config_fits(config, problem, list(tensors.values()))
