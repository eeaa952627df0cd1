# SPDX-License-Identifier: Apache-2.0
"""Gradients of wide heads on a Hopper GPU, against float64, at real sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.call.backward_call import Gradients
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.launch.compute import compute_gradients
from flash_attention.launch.plan import Plan
from tests.families.sm90.backward.cases import Case

pytestmark = pytest.mark.gpu("sm_90")

SIZES: dict[str, dict[str, Any]] = {
    "full": {"q_lengths": 2048, "heads": (4, 4)},
    "causal": {"q_lengths": 4096, "heads": (4, 4), "causal": True},
    "grouped heads": {"q_lengths": 1024, "heads": (16, 2), "batch": 2, "causal": True},
    "odd lengths": {"q_lengths": 1001, "k_lengths": 1777, "heads": (3, 1), "causal": True},
    "more queries than keys": {"q_lengths": 1500, "k_lengths": 700, "causal": True},
    "window": {"q_lengths": 2000, "heads": (4, 2), "window": (300, 10)},
    "packed": {
        "q_lengths": (700, 0, 1, 1300, 513),
        "k_lengths": (700, 20, 90, 1300, 0),
        "heads": (8, 2),
        "causal": True,
    },
    "softcap": {"q_lengths": 1500, "heads": (4, 2), "causal": True, "softcap": 1.0},
    "used keys": {"q_lengths": 600, "k_lengths": 900, "batch": 3, "used": (900, 65, 0)},
}


def assert_same_bits(mine: Gradients, others: Gradients) -> None:
    for one, other in zip(mine[:3], others[:3], strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("d_head", [264, 384, 512])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_right(size: str, d_head: int, dtype: torch.dtype) -> None:
    case = Case(**SIZES[size], d=(d_head, d_head), dtype=dtype, device="cuda")
    case.check(compute_gradients(case.call))


def test_every_run_gives_the_same_bits_under_load() -> None:
    case = Case(3000, heads=(8, 4), d=(512, 512), causal=True, device="cuda")
    first = compute_gradients(case.call)
    load = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    beside = torch.cuda.Stream()
    for _ in range(30):
        with torch.cuda.stream(beside):
            load @ load
        assert_same_bits(first, compute_gradients(case.call))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_parts_agree_with_the_whole(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(4096, heads=(4, 2), d=(512, 512), causal=causal, device="cuda")
    whole = compute_gradients(case.call)
    for mib in ("256", "64"):  # by heads, then by keys
        monkeypatch.setenv(WORKSPACE_VARIABLE, mib)
        parts = Plan(case.call).run(case.call)
        case.check(parts)
        assert_same_bits(parts._replace(dq=whole.dq), whole)


def test_attention_is_differentiable_and_a_graph_replays_it() -> None:
    case = Case(1500, heads=(4, 2), d=(512, 512), causal=True, device="cuda")
    call = case.call.call
    leaves = [t.clone().requires_grad_() for t in (call.q, call.k, call.v)]

    def gradients() -> Gradients:
        out = attention(*leaves, causal=True)
        return Gradients(*torch.autograd.grad(out, leaves, case.call.do))

    eager = gradients()
    case.check(eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients()
    graph.replay()
    assert_same_bits(captured, eager)
