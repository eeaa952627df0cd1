# SPDX-License-Identifier: Apache-2.0
"""A case calls attention with what its point says; on the CPU torch answers."""

from __future__ import annotations

import pytest
import torch

from flash_attention.choose.choice import Rule
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Point


@pytest.mark.parametrize(
    "point",
    [
        Point(64, True, 96, 2, 4),
        Point(64, True, 96, 2, 4, heads_k=2),
        Point(64, False, 96, 2, 4, heads_k=1, seq_q=1),
        Point(64, True, 96, 1, 2, window=10),
        Point(64, True, 96, 3, 2, lengths=(96, 7, 40)),
    ],
    ids=lambda point: point.label,
)
def test_what_attention_computes_is_what_the_judge_expects(point: Point) -> None:
    case = Case.of(point, DType.BF16)
    assert case.out.isnan().all()
    judge = case.judge()
    check = judge.check(case.selected("ours").run())
    assert check.ok, str(check)
    case.poison()
    assert not judge.check(case.out).ok


def test_shapes() -> None:
    few = Case.of(Point(64, False, 96, 2, 4, heads_k=1, seq_q=3), DType.FP16)
    assert [tuple(t.shape) for t in (few.q, few.k, few.v, few.out)] == [
        *((2, 3, 4, 64), (2, 96, 1, 64), (2, 96, 1, 64), (2, 3, 4, 64))
    ]
    packed = Case.of(Point(64, True, 96, 2, 4, lengths=(96, 32)), DType.FP16)
    assert packed.q.shape == (128, 4, 64)
    assert packed.starts is not None
    assert packed.starts.tolist() == [0, 96, 128]
    assert packed.q.dtype == torch.float16


def test_the_plan_is_that_of_attention() -> None:
    assert Case.of(Point(128, True, 256, 1, 2), DType.BF16).plan().problem.causal
    window = Case.of(Point(128, True, 256, 1, 2, window=10), DType.BF16)
    assert window.plan().problem.window == (9, 0)
    assert window.without_window().plan().problem.causal
    packed = Case.of(Point(128, True, 200, 2, 2, lengths=(200, 56)), DType.BF16)
    assert packed.plan().problem.total_q == 256
    few = Case.of(Point(128, False, 1024, 1, 8, heads_k=2, seq_q=1), DType.BF16)
    assert few.plan().choice.rule is Rule.DECODE
