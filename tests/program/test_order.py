# SPDX-License-Identifier: Apache-2.0
"""Distances without a sign, where a query sees no later key."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import masks, scores
from flash_attention.call.call import Call
from flash_attention.call.function import Function
from flash_attention.call.problem import Problem
from flash_attention.program.order import with_signs
from flash_attention.program.tilt import Tilt, tilt_of
from flash_attention.program.torch_reader import change_score, grid, see
from flash_attention.program.trace import Traced, trace

SLOPES = torch.tensor([0.5, 0.25])
IDS = torch.tensor([0, 0, 1, 1, 1, 2, 2])
SHAPE = (2, 2, 7, 7)
SCORES: dict[str, Any] = {
    "ALiBi": scores.alibi(SLOPES),
    "key less query": lambda s, b, h, q, k: s - SLOPES[h] * abs(k - q),
    "floats": lambda s, b, h, q, k: s + abs((k - q).float()) * -SLOPES[h],
    "floats, query less key": lambda s, b, h, q, k: s - SLOPES[h] * (q - k).float().abs(),
}
CAUSAL: dict[str, Any] = {
    "causal": masks.causal(),
    "documents": masks.documents(IDS) & masks.causal(),
    "window": masks.window(3, 0),
    "earlier keys": lambda b, h, q, k: k < q,
}
OTHERS: dict[str, Any] = {
    "none": None,
    "later keys": lambda b, h, q, k: q <= k,
    "an offset": masks.causal(1),
    "prefix": masks.prefix_lm(3),
    "not causal": ~masks.causal(),
}


@pytest.mark.parametrize("mask", CAUSAL)
@pytest.mark.parametrize("score", SCORES)
def test_distances_have_a_sign_under_a_causal_mask(score: str, mask: str) -> None:
    traced = trace(SCORES[score], CAUSAL[mask])
    program = with_signs(traced.program, False)
    assert isinstance(tilt_of(program), Tilt)
    at, given = grid(*SHAPE), torch.randn(SHAPE, dtype=torch.float64)
    signed = Traced(program, traced.tensors, traced.numbers)
    seen = see(traced, at).expand(SHAPE)
    before, after = change_score(traced, given, at), change_score(signed, given, at)
    assert torch.equal(before[seen], after[seen])
    assert not torch.equal(before, after)


@pytest.mark.parametrize("mask", OTHERS)
def test_distances_stay_as_they_are_under_other_masks(mask: str) -> None:
    program = trace(scores.alibi(SLOPES), OTHERS[mask]).program
    assert with_signs(program, False) is program
    assert tilt_of(with_signs(program, True)) is not None


def test_other_distances_stay_as_they_are() -> None:
    program = trace(lambda s, b, h, q, k: s - abs(q - 2 * k), masks.causal()).program
    assert with_signs(program, False) is program


@pytest.mark.parametrize(
    ("rows", "more", "is_tilted"),
    [
        ((7, 7), {"causal": True}, True),
        ((7, 7), {"window": (3, 0)}, True),
        ((7, 7), {"window": (3, 1)}, False),
        ((7, 7), {}, False),
        ((4, 7), {"causal": True}, False),
        ((4, 7), {"causal": True, "seqused_k": torch.tensor([7], dtype=torch.int32)}, True),
    ],
)
def test_built_in_masks_count(rows: tuple[int, int], more: dict[str, Any], is_tilted: bool) -> None:
    q, k = (torch.zeros(1, n, 2, 16, dtype=torch.bfloat16) for n in rows)
    program = Problem.of(Call(q, k, k, function=Function(scores.alibi(SLOPES)), **more)).program
    assert program is not None
    assert (tilt_of(program) is not None) is is_tilted


def test_packed_sequences_may_have_more_keys_than_queries() -> None:
    q = torch.zeros(7, 2, 16, dtype=torch.bfloat16)
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)
    packed: dict[str, Any] = {
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": 4,
        "max_seqlen_k": 4,
    }
    function = Function(scores.alibi(SLOPES))
    program = Problem.of(Call(q, q, q, causal=True, function=function, **packed)).program
    assert program is function.program
