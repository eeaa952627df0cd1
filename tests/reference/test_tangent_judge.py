# SPDX-License-Identifier: Apache-2.0
"""The judge of tangents: it agrees with torch's own derivatives, and tells wrong ones."""

from __future__ import annotations

import math

import pytest
import torch

from flash_attention.call.tangent_call import WithTangent
from flash_attention.reference.composite import evaluate_tangent
from flash_attention.reference.tangent_judge import TangentJudge
from tests.families.sm90.tangent.cases import TangentCase, by_composition

CASES = [
    TangentCase("causal", 30, 40, 16, heads=4, heads_k=2, causal=True),
    TangentCase("rows without keys", 30, 20, 16, causal=True),
    TangentCase("window", 30, 40, 16, 24, batch=2, window=(5, 3), softmax_scale=0.7),
    TangentCase("softcap", 30, 40, 16, softcap=1.5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_formulas_are_torchs_derivative(case: TangentCase) -> None:
    asked = case.make()
    found, wanted = evaluate_tangent(asked, torch.float64), by_composition(asked, torch.float64)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def rounded(found: WithTangent) -> WithTangent:
    halves = {name: getattr(found, name).bfloat16() for name in ("o", "o_tangent")}
    return found._replace(**halves)


@pytest.mark.parametrize("name", ["o", "o_tangent", "lse_tangent"])
def test_a_wrong_result_is_told(name: str) -> None:
    asked = CASES[0].make()
    judge = TangentJudge(asked)
    right = rounded(evaluate_tangent(asked, torch.float64))
    assert all(check.ok for check in judge.check(right).values())
    wrong = right._replace(**{name: 1.2 * getattr(right, name)})
    verdicts = {of: check.ok for of, check in judge.check(wrong).items()}
    assert verdicts == {of: of != name for of in verdicts}


def test_large_problems_are_checked_at_some_heads() -> None:
    asked = TangentCase("", 8, 8, 16, heads=8, heads_k=4).make()
    judge = TangentJudge(asked, scores=2 * 2 * 8 * 8)
    assert judge.heads == [0, 1, 6, 7]
    right = rounded(evaluate_tangent(asked, torch.float64))
    right.o_tangent[0, 3, 4, 5] = 9  # of a head that is not checked
    assert all(check.ok for check in judge.check(right).values())
    right.o_tangent[0, 3, 4, 5] = math.nan
    assert not judge.check(right)["o_tangent"].ok
