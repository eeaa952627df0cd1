# SPDX-License-Identifier: Apache-2.0
"""What each family and kind of kernel is for, and what a call that does not fit is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.checks import TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.fit_checks import check_config_fits, check_features_fit, check_lse_fits
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)
from flash_attention.options import DEFAULTS, NO_EXTRAS, Extras, Options
from flash_attention.problem import Problem

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
    check_lse_fits(config, False)


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
def test_features_are_for_hopper_kernels_with_a_producer(features: Features, asked: str) -> None:
    check_features_fit(HOPPER, features)
    with refused(rf"{asked}.*FlashForwardKernelConfig.* pass a HopperForwardKernelConfig.*sm_90"):
        check_features_fit(CONFIG, features)
    if features == CAUSAL:
        check_features_fit(UNIFIED, features)
    else:
        with refused(f"{asked}.* without a producer .* pass a config with specialised=True"):
            check_features_fit(UNIFIED, features)


def test_logarithms_and_sinks_are_for_the_hopper_family() -> None:
    check_lse_fits(HOPPER, True)
    with refused(r"return_lse=True, .*HopperForwardKernelConfig.*sm_90"):
        check_lse_fits(CONFIG, True)
    sinks = Extras(sinks=torch.zeros(4))
    check(UNIFIED, extras=sinks)
    check(HOPPER, extras=sinks)
    with refused(r"sinks are given, .*HopperForwardKernelConfig.*sm_90"):
        check(CONFIG, extras=sinks)


@pytest.mark.parametrize("shape", [(2, 1, 4, 128), (2, 77, 2, 128), (2, 1 << 30, 1, 128)])
def test_keys_of_another_length_and_fewer_heads_are_for_the_hopper_family(
    shape: tuple[int, ...],
) -> None:
    check(HOPPER, k=shape)
    with refused(r"do not take fewer heads .*Hopper.* sm_90"):
        check(CONFIG, k=shape)


@pytest.mark.parametrize("shape", [(0, 128, 4, 128), (2, 0, 4, 128), (2, 128, 0, 128)])
def test_empty_tensors_are_for_the_hopper_family(shape: tuple[int, ...]) -> None:
    check(HOPPER, shape)
    with refused(r"nothing to compute; every dimension must be at"):
        check(CONFIG, shape)


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
def test_tma_takes_fewer_columns_than_the_kernel_was_compiled_for(d_head: tuple[int, int]) -> None:
    d_qk, d_v = d_head
    shapes = [(2, 128, 4, d) for d in (d_qk, d_qk, d_v)]
    check(HOPPER, *shapes)
    check(UNIFIED, *shapes)
    for config in (replace(UNIFIED, tma=False), CONFIG):
        with refused("config is for d_head 128, the tensors have d_head"):
            check(config, *shapes)


def test_more_columns_than_the_kernel_was_compiled_for_are_refused() -> None:
    wide = (2, 128, 4, 136)
    with refused(r"for d_head up to 128, q and k have d_head 136; pass a config with at least"):
        check(HOPPER, wide)
    with refused(r"for d_head up to 128, v has d_head 136"):
        check(HOPPER, SHAPE, SHAPE, wide)


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        ({"dtype": DType.BF16}, SHAPE, r"config is for torch.bfloat16, the tensors are torch.floa"),
        ({"d_head": 64}, SHAPE, r"config is for d_head 64, the tensors have d_head 128"),
        ({"B_r": 128}, (2, 192, 4, 128), r"q has 192 rows, .* B_r = 128; pad to 256 rows"),
        ({}, (2, 96, 4, 128), r"q has 96 rows, .* B_r = 64; pad to 128 rows"),
        ({"B_c": 128}, (2, 192, 4, 128), r"k has 192 rows, .* B_c = 128; pad to 256 rows"),
        ({}, (2, 1, 4, 128), r"q has 1 rows, .* pad to 64 rows"),
    ],
)
def test_tensors_that_the_first_family_is_not_for_are_refused(
    changes: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    with refused(message):
        check(replace(CONFIG, **changes), shape)


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
