# SPDX-License-Identifier: Apache-2.0
"""Plans of calls with tangents: found again, for tensors of these strides alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention import UnsupportedError
from flash_attention.call.any_call import AnyCall
from flash_attention.call.tangent_call import TangentCall
from flash_attention.launch.compute import compute_tangent
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import known_plan, plan_for
from flash_attention.launch.tangent import TangentPreparation
from tests.families.sm90.tangent.cases import USUAL, TangentCase, assert_right

CASE = TangentCase("", 20, 30, heads=2)


def test_a_plan_is_found_again_for_calls_of_one_key() -> None:
    asked = CASE.make()
    plan = plan_for(asked, USUAL)
    assert plan is plan_for(CASE.make(), USUAL) is known_plan(CASE.make(), USUAL)
    assert plan is known_plan(CASE.make(), USUAL, by_key=False)  # noted before
    others: list[AnyCall] = [
        asked._replace(call=asked.call._replace(causal=True)),
        asked._replace(k_tangent=asked.k_tangent.transpose(0, 3).contiguous().transpose(0, 3)),
        replace(CASE, seq_q=21).make(),
        asked.call,
    ]
    assert [known_plan(other, USUAL) for other in others] == [None] * 4
    assert plan.config == USUAL
    assert isinstance(plan.preparation, TangentPreparation)


def test_results_have_the_strides_of_q() -> None:
    asked = CASE.make()
    q = asked.call.q.transpose(1, 2).contiguous().transpose(1, 2)
    moved = asked._replace(call=asked.call._replace(q=q))
    found = compute_tangent(moved, USUAL)
    assert found.o.stride() == found.o_tangent.stride() == q.stride()
    assert_right(moved, found)


def test_a_tangent_at_an_odd_address_is_copied() -> None:
    call, q_tangent, *others = CASE.make()
    shifted = torch.empty(q_tangent.numel() + 1, dtype=q_tangent.dtype)[1:].view_as(q_tangent)
    asked = TangentCall(call, shifted.copy_(q_tangent), *others)
    plan = Plan(asked, USUAL)
    with pytest.raises(UnsupportedError, match="q_tangent starts at address"):
        plan.bind(asked)
    assert_right(asked, compute_tangent(asked, USUAL))
