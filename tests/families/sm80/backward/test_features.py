# SPDX-License-Identifier: Apache-2.0
"""Features of sm_80 backward kernels: which gradients a kernel computes, and what that binds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features, MaskKind
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.features import (
    Sm80BackwardFeatures,
    kernels_of,
    resolve,
)
from tests.hopper_configs import square

CONFIG = FlashBackwardKernelConfig(DType.BF16, 64, 64, 64, 4)
PROBLEM = BackwardProblem.of_pass(square(DType.BF16, 64, 512))


def test_pages_are_refused_and_sinks_are_in_the_log_sum_exp() -> None:
    with pytest.raises(UnsupportedError, match="no gradients of a paged KV cache"):
        resolve(Features(page_keys=64))
    features = resolve(Features(MaskKind.WINDOW, softcap=True, per_batch=True, sinks=True))
    assert features == Sm80BackwardFeatures(MaskKind.WINDOW, softcap=True, per_batch=True)
    assert resolve(features) is features


@pytest.mark.parametrize(
    ("wanted", "deterministic", "suffixes"),
    [
        (Wanted(), False, [""]),
        (Wanted(), True, ["_only_dk_dv", "_only_dq"]),
        (Wanted(dv=False), False, ["_only_dq_dk"]),
        (Wanted(dk=False), True, ["_only_dv", "_only_dq"]),
        (Wanted(dk=False, dv=False), False, ["_only_dq"]),
        (Wanted(dk=False, dv=False), True, ["_only_dq"]),
        (Wanted(dq=False), False, ["_only_dk_dv"]),
        (Wanted(dq=False, dk=False), True, ["_only_dv"]),
        (Wanted(False, False, False, dsinks=True), False, []),
    ],
)
def test_only_wanted_gradients_are_computed(
    wanted: Wanted, deterministic: bool, suffixes: list[str]
) -> None:
    problem = replace(PROBLEM, wanted=wanted, deterministic=deterministic)
    assert [kernel.suffix for kernel in kernels_of(problem)] == suffixes


@pytest.mark.parametrize(
    ("features", "loop", "numbers"),
    [
        (Sm80BackwardFeatures(), "KV", (1, 1, 1, 1)),
        (Sm80BackwardFeatures(dq=False), "KV", (1, 1, 0, 1)),
        (Sm80BackwardFeatures(dq=False, dk=False), "KV", (1, 0, 0, 0)),
        (Sm80BackwardFeatures(dk=False), "KV", (1, 0, 1, 1)),
        (Sm80BackwardFeatures(dk=False, dv=False), "Q", (0, 1, 0, 1)),
    ],
)
def test_what_the_gradients_bind(
    features: Sm80BackwardFeatures, loop: str, numbers: tuple[int, ...]
) -> None:
    text = "\n".join(binding.declaration for binding in features.bindings(CONFIG))
    assert f"fa::sm80::backward::outer_loop::{loop};" in text
    for name, number in zip(("SumsP", "SumsDs", "AddsDq", "NeedsDs"), numbers, strict=True):
        assert f"k{name} = {number};" in text


def test_kernels_take_no_more_shared_memory_than_they_need() -> None:
    whole = CONFIG.smem_bytes()
    weights, statistics = 64 * 64 * 2, 64 * 8
    registers = replace(CONFIG, register_operands=True)
    for features, through_memory, in_registers in (
        (Sm80BackwardFeatures(), 0, weights),
        (Sm80BackwardFeatures(dq=False), 0, 2 * weights),
        (Sm80BackwardFeatures(dq=False, dk=False), weights, 2 * weights),
        (Sm80BackwardFeatures(dk=False, dv=False), weights + statistics, 2 * weights + statistics),
    ):
        assert features.smem_bytes(CONFIG) == whole - through_memory
        assert features.smem_bytes(registers) == whole - in_registers
