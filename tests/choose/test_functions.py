# SPDX-License-Identifier: Apache-2.0
"""Calls with functions get the configs that tables have for built-in calls, where there is room."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import Function, masks, scores
from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Choice, Rule
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.rules import choose
from flash_attention.families.recipe import Setting
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig

SLOPES, TABLE = torch.ones(32), torch.ones(32, 9)
MASKS: dict[str, Any] = {
    "causal": Function(mask=masks.causal()),
    "documents": Function(mask=masks.documents(torch.zeros(16384, dtype=torch.int32))),
}
TILTED = Function(scores.alibi(SLOPES), masks.causal())
ALIBI = Function(scores.alibi(SLOPES))


def problem(d: int, rows: int = 16384, **more: Any) -> Problem:
    q = torch.empty(16384 // rows, rows, 2048 // d, d, dtype=torch.bfloat16, device="meta")
    return Problem.of(Call(q, q, q, **more))


def chosen(asked: Problem) -> Choice:
    return choose(asked, Setting(ARCHES["sm_90"], 132, device="NVIDIA H200"))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_masks_get_what_a_causal_mask_gets(name: str, d: int) -> None:
    expected, found = (
        chosen(problem(d, causal=True)),
        chosen(problem(d, function=MASKS[name])),
    )
    assert (expected.rule, found.rule) == (Rule.TABLE, Rule.TABLE)
    assert found.config == expected.config


def test_scores_get_it_too_where_registers_are_left() -> None:
    for rows in (4096, 16384):
        for function, more in ((ALIBI, {}), (ALIBI, {"causal": True}), (TILTED, {})):
            causal = bool(more) or function is TILTED
            expected = chosen(problem(128, rows, causal=causal))
            found = chosen(problem(128, rows, function=function, **more))
            assert (found.rule, found.config) == (Rule.TABLE, expected.config)


def test_reads_of_pairs_leave_too_few_for_three_consumers() -> None:
    relative = Function(scores.relative_bias(TABLE))
    plain, found = chosen(problem(128)).config, chosen(problem(128, function=relative)).config
    assert isinstance(plain, HopperForwardKernelConfig)
    assert isinstance(found, HopperForwardKernelConfig)
    assert (plain.consumers, found.consumers) == (3, 2)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (ALIBI, (3, 96)),
        (TILTED, (3, 96)),
        (Function(scores.softcap(9.0)), (3, 96)),
        (Function(scores.relative_bias(TABLE)), (2, 128)),
    ],
)
def test_others_have_smaller_blocks_or_fewer_consumers(
    function: Function, shape: tuple[int, int]
) -> None:
    plain, found = chosen(problem(64)), chosen(problem(64, function=function))
    assert isinstance(plain.config, HopperForwardKernelConfig)
    assert isinstance(found.config, HopperForwardKernelConfig)
    assert (plain.config.consumers, plain.config.B_c) == (3, 128)
    assert (found.config.consumers, found.config.B_c) == shape


def test_other_features_and_gradients_are_not_looked_up() -> None:
    assert DenseProblem.like(problem(64)) is None
    assert DenseProblem.like(problem(64, function=ALIBI, softcap=3.0)) is None
    assert DenseProblem.like(BackwardProblem.of_pass(problem(64, function=ALIBI))) is None
