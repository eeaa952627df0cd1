# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import BackwardCall, Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.gradients import evaluate_gradients

EVERY = Wanted(dsinks=True)


def drawn(dtype: torch.dtype = torch.bfloat16, **keywords: Any) -> tuple[Call, torch.Tensor]:
    torch.manual_seed(0)
    q, do = (torch.randn(2, 70, 4, 32).to(dtype) for _ in range(2))
    k, v = (torch.randn(2, 90, 2, 32).to(dtype) for _ in range(2))
    return Call(q, k, v, sinks=torch.randn(4), **keywords), do


def by_autograd(call: Call, do: torch.Tensor, dtype: torch.dtype) -> Gradients:
    """Gradients of full attention with sinks by torch, every step in a data type."""
    q, k, v = (t.detach().to(dtype).requires_grad_() for t in call[:3])
    assert call.sinks is not None
    sinks = call.sinks.detach().to(dtype).requires_grad_()
    heads = (t.transpose(1, 2) for t in (q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)))
    queries, keys, values = heads
    scores = queries @ (keys * 32**-0.5).mT
    column = sinks[:, None, None].expand(2, 4, 70, 1)
    weights = torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    out = (weights @ values).transpose(1, 2)
    grads = torch.autograd.grad(out, (q, k, v, sinks), do.to(dtype))
    return Gradients(*grads)


def test_exact_gradients_are_right_and_the_rule_is_that_of_16_bit_torch() -> None:
    call, do = drawn()
    judge = GradientJudge(call, do, wanted=EVERY)
    exact = by_autograd(call, do, torch.float64)
    for check in judge.check(exact).values():
        assert check.error < 1e-12
    rounded = by_autograd(call, do, torch.bfloat16)
    for name, check in judge.check(rounded).items():
        assert check.ok, name
        if name != "dsinks":
            assert 0.3 < check.ratio < 3


@pytest.mark.parametrize("name", Gradients._fields)
def test_an_error_is_found_and_placed(name: str) -> None:
    call, do = drawn()
    judge = GradientJudge(call, do, wanted=EVERY)
    gradients = by_autograd(call, do, torch.float64)
    wrong = getattr(gradients, name).clone()
    place = (1,) if name == "dsinks" else (1, 5, 1, 7)
    wrong[place] += 5
    checks = judge.check(gradients._replace(**{name: wrong}))
    assert {n for n, check in checks.items() if not check.ok} == {name}
    assert checks[name].worst_index == place
    assert checks[name].mismatched == 1


def test_some_heads_are_checked_and_none_may_be_nan() -> None:
    call, do = drawn()
    judge = GradientJudge(call, do, scores=1)
    assert (judge.heads_k, judge.heads) == ([0], [0, 1])
    exact = by_autograd(call, do, torch.float64)
    assert exact.dk is not None
    other = exact.dk.clone()
    other[0, 0, 1, 0] += 9
    assert judge.check(exact._replace(dk=other))["dk"].ok
    other[0, 0, 1, 0] = torch.nan
    check = judge.check(exact._replace(dk=other))["dk"]
    assert not check.ok
    assert check.worst_index == (0, 0, 1, 0)


def test_nothing_to_check_is_right() -> None:
    call, do = drawn()
    empty = call._replace(k=call.k[:, :0], v=call.v[:, :0])
    zeros = Gradients(*(torch.zeros_like(t) for t in empty[:3]))
    checks = GradientJudge(empty, do).check(zeros)
    assert {name: (check.ok, check.elements) for name, check in checks.items()} == {
        "dq": (True, do.numel()),
        "dk": (True, 0),
        "dv": (True, 0),
    }


@pytest.mark.parametrize("name", EVERY._fields)
def test_the_output_in_16_bits_explains_an_error(name: str) -> None:
    call, do = drawn()
    out, lse = evaluate(call, torch.float64, lse=True)
    coarse = (out.bfloat16() * 8).round() / 8  # farther off than 16-bit torch
    given = call._replace(out=coarse)
    gradients = evaluate_gradients(BackwardCall(do, given, lse, None, EVERY), torch.float64)
    explained = GradientJudge(given, do, wanted=EVERY).check(gradients)[name]
    unexplained = GradientJudge(call, do, wanted=EVERY).check(gradients)[name]
    assert explained.ok
    if name == "dv":  # which does not depend on the output
        assert (explained.error, explained.allowed) == (0.0, unexplained.allowed)
    else:
        assert explained.reference_error == explained.error > unexplained.reference_error
        assert not unexplained.ok or unexplained.ratio > 1.5


def test_only_what_is_given_is_checked() -> None:
    call, do = drawn()
    judge = GradientJudge(call, do, wanted=Wanted(dq=False))
    exact = by_autograd(call, do, torch.float64)
    assert set(judge.check(exact)) == {"dk", "dv"}
