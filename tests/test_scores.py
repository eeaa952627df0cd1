# SPDX-License-Identifier: Apache-2.0
"""Score functions by name against their formulas."""

from __future__ import annotations

from collections.abc import Callable
from pickle import dumps, loads
from typing import Any, cast

import pytest
import torch

from flash_attention import scores
from flash_attention.errors import UnsupportedError
from flash_attention.program.torch_reader import change_score, grid
from flash_attention.program.trace import trace_score

SHAPE = (2, 3, 7, 9)
SCORE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DISTANCE = (torch.arange(9) - torch.arange(7)[:, None]).double()  # key - query


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def changed(function: scores.ScoreFunction) -> torch.Tensor:
    """The scores that a function changes, as one that was pickled does."""
    found = change_score(trace_score(function), SCORE, grid(*SHAPE))
    again = change_score(trace_score(loads(dumps(function))), SCORE, grid(*SHAPE))
    assert torch.equal(again, found)
    return found


def test_alibi() -> None:
    slopes = drawn(3)
    wanted = SCORE - slopes[:, None, None] * DISTANCE.abs()
    torch.testing.assert_close(changed(scores.alibi(slopes)), wanted)
    by_batch = drawn(2, 3)
    wanted = SCORE - by_batch[:, :, None, None] * DISTANCE.abs()
    torch.testing.assert_close(changed(scores.alibi(by_batch)), wanted)


def test_alibi_slopes() -> None:
    torch.testing.assert_close(scores.alibi_slopes(8), 2.0 ** -torch.arange(1.0, 9.0))
    twelve = [*(2.0 ** -torch.arange(1.0, 9.0)).tolist(), *(2.0**-e for e in (0.5, 1.5, 2.5, 3.5))]
    torch.testing.assert_close(scores.alibi_slopes(12), torch.tensor(twelve))


def test_relative_bias() -> None:
    table = drawn(3, 7)
    places = DISTANCE.long().clamp(-3, 3) + 3
    torch.testing.assert_close(changed(scores.relative_bias(table)), SCORE + table[:, places])


@pytest.mark.parametrize("shape", [(7, 9), (3, 7, 9), (2, 3, 7, 9), (2, 1, 1, 9), (1, 3, 7, 1)])
def test_additive_bias(shape: tuple[int, ...]) -> None:
    bias = drawn(*shape)
    torch.testing.assert_close(changed(scores.additive_bias(bias)), SCORE + bias)


def test_softcap() -> None:
    torch.testing.assert_close(changed(scores.softcap(0.7)), 0.7 * torch.tanh(SCORE / 0.7))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: scores.alibi(torch.zeros(3).int()), "a dtype of floats"),
        (lambda: scores.alibi_slopes(0), "heads is 0"),
        (
            lambda: scores.alibi(cast(Any, [0.5, 0.25])),
            "slopes is .0.5, 0.25.; pass a tensor of floats",
        ),
        (lambda: scores.relative_bias(torch.zeros(3, 8)), "an odd number is needed"),
        (lambda: scores.additive_bias(torch.zeros(8)), "must have 2 or 3 or 4 dimensions"),
        (lambda: scores.softcap(0.0), "cap is 0.0"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        make()
