# SPDX-License-Identifier: Apache-2.0
"""The backward pass of a case: its tensors on a CPU, its contenders on a GPU."""

from __future__ import annotations

import pytest
import torch

from flash_attention import DType
from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.tools.bench.backward_case import BackwardCase, normal_like
from flash_attention.tools.bench.case import Case
from flash_attention.tools.bench.grid import Point

POINT = Point(64, causal=True, seq_len=96, batch=2, heads=4, heads_k=2)


def test_it_has_the_results_of_the_forward_pass() -> None:
    backward = BackwardCase.of(Case.of(POINT, DType.BF16))
    call = backward.call.call
    exact, lse = evaluate(call._replace(out=None), torch.float64, lse=True)
    assert call.out is not None
    torch.testing.assert_close(call.out.double(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(backward.call.lse.double(), lse, rtol=1e-5, atol=1e-5)
    assert backward.call.do.shape == call.q.shape
    assert torch.equal(backward.call.do, normal_like(call.out))


def test_the_flop_are_those_of_five_products() -> None:
    for causal, part in ((False, 1), (True, 2)):
        case = Case.of(Point(64, causal, seq_len=96, batch=2, heads=4), DType.BF16)
        assert BackwardCase.of(case).flop == 10 * 2 * 4 * 96 * 96 * 64 // part


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1, 11])
def test_contenders_compute_gradients_and_what_is_not_stored_is_poison(number: int) -> None:
    backward = BackwardCase.of(Case.of(POINT, DType.BF16, "cuda"))
    judge = GradientJudge(backward.call.call, backward.call.do)
    config = get_ladder(DType.BF16, 64, pass_=Pass.BACKWARD)[number - 1].config
    kernel = backward.kernel(config)
    for contender in (backward.flash_attention_2("FA2"), kernel):
        contender.poison()
        checks = judge.check(contender.run())
        assert list(checks) == ["dq", "dk", "dv"]
        assert all(check.ok for check in checks.values()), contender.name
    found = kernel.run()
    kernel.poison()
    assert all(torch.isnan(gradient).all() for gradient in found[:3])
