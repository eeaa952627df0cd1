# SPDX-License-Identifier: Apache-2.0
"""Gradients of the kernels on a Hopper GPU, against float64, at real sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import Gradients, Wanted
from flash_attention.families.config import changed
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.families.sm90.backward.rungs import base, causal_steps, steps
from flash_attention.kernel_configs import DType
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.plan import Plan
from tests.families.sm90.backward.cases import Case, config

pytestmark = pytest.mark.gpu("sm_90")

SIZES: dict[str, dict[str, Any]] = {
    "full": {"q_lengths": 2048, "heads": (4, 4)},
    "causal": {"q_lengths": 2048, "heads": (4, 4), "causal": True},
    "long": {"q_lengths": 8192, "heads": (2, 2), "causal": True},
    "short": {"q_lengths": 512, "batch": 16, "heads": (4, 4)},
    "grouped heads": {"q_lengths": 1024, "heads": (16, 2), "batch": 2, "causal": True},
    "odd lengths": {"q_lengths": 1001, "k_lengths": 1777, "heads": (3, 3), "causal": True},
    "more queries than keys": {
        "q_lengths": 1500,
        "k_lengths": 700,
        "heads": (2, 1),
        "causal": True,
    },
    "window": {"q_lengths": 2000, "heads": (4, 2), "window": (300, 10)},
    "packed": {
        "q_lengths": (700, 1, 1300, 513),
        "k_lengths": (700, 90, 1300, 129),
        "heads": (8, 2),
        "causal": True,
    },
    "softcap": {"q_lengths": 1500, "heads": (4, 2), "causal": True, "softcap": 1.0},
    "softcap, packed": {
        "q_lengths": (700, 1, 1300, 513),
        "k_lengths": (700, 90, 1300, 129),
        "heads": (4, 2),
        "window": (400, 20),
        "softcap": 30.0,
    },
    "used keys": {"q_lengths": 600, "k_lengths": 900, "batch": 3, "used": (900, 65, 0)},
    "narrow heads": {"q_lengths": 1000, "heads": (4, 4), "narrow": True},
}


def assert_same_bits(mine: Gradients, others: Gradients) -> None:
    for one, other in zip(mine, others, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("size", SIZES)
def test_the_heuristic_is_right(
    size: str, d_head: int, deterministic: bool, dtype: torch.dtype
) -> None:
    problem = dict(SIZES[size])
    d = (d_head - 24, d_head - 8) if problem.pop("narrow", False) else (d_head, d_head)
    case = Case(**problem, d=d, dtype=dtype, device="cuda", deterministic=deterministic)
    assert Plan(case.call).config.d_head == d_head
    assert type(Plan(case.call).config).__name__ == "HopperBackwardKernelConfig"
    case.check(compute_gradients(case.call))


@pytest.mark.parametrize("d_head", [64, 128])
def test_every_rung_is_right(d_head: int) -> None:
    case = Case(1500, heads=(4, 2), d=(d_head, d_head), causal=True, device="cuda")
    kernel: Any = base(DType.BF16, d_head)
    case.check(compute_gradients(case.call, kernel))
    for _, _, change in (*steps(d_head), *causal_steps()):
        kernel = changed(kernel, **change)
        case.check(compute_gradients(case.call, kernel))


IN_ORDER = {
    64: config(64, dq="ordered", derivative="pairs", schedule="paired", order="dynamic_8"),
    128: config(128, dq="ordered", order="dynamic_8"),
}


@pytest.mark.parametrize("d_head", IN_ORDER)
@pytest.mark.parametrize("size", SIZES)
def test_tiles_in_order_are_right(size: str, d_head: int) -> None:
    problem = dict(SIZES[size])
    d = (d_head - 24, d_head - 8) if problem.pop("narrow", False) else (d_head, d_head)
    case = Case(**problem, d=d, device="cuda")
    case.check(compute_gradients(case.call, IN_ORDER[d_head]))


@pytest.mark.parametrize("d_head", IN_ORDER)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_tiles_in_order_repeat_bit_for_bit_under_load(causal: bool, d_head: int) -> None:
    case = Case(4096, heads=(8, 8), d=(d_head, d_head), causal=causal, device="cuda")
    first = compute_gradients(case.call, IN_ORDER[d_head])
    load = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    beside = torch.cuda.Stream()
    for _ in range(50):
        with torch.cuda.stream(beside):
            load @ load
        assert_same_bits(first, compute_gradients(case.call, IN_ORDER[d_head]))


@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_deterministic_gradients_repeat_bit_for_bit(d_head: int) -> None:
    case = Case(
        3000, heads=(8, 4), d=(d_head, d_head), causal=True, device="cuda", deterministic=True
    )
    first = compute_gradients(case.call)
    for _ in range(20):
        assert_same_bits(first, compute_gradients(case.call))


@pytest.mark.parametrize("d_head", [128, 256])
def test_parts_agree_with_the_whole(d_head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    family = "flash_attention.families.sm90.backward.family"
    monkeypatch.setattr(f"{family}.head_splits", lambda *_: 1)  # as many in parts as in the whole
    case = Case(4096, heads=(4, 2), d=(d_head, d_head), device="cuda", deterministic=True)
    whole = Plan(case.call).run(case.call)
    for mib in ("128", "32"):  # by heads, then by keys
        monkeypatch.setenv(WORKSPACE_VARIABLE, mib)
        parts = Plan(case.call).run(case.call)
        case.check(parts)
        assert_same_bits(parts._replace(dq=None), whole._replace(dq=None))


def test_dk_and_dv_alone_are_right() -> None:
    case = Case(1000, heads=(4, 2), causal=True, device="cuda", wanted=Wanted(dq=False))
    case.check(compute_gradients(case.call))
