# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.program.nodes import HEAD
from flash_attention.program.tilt import tilt_of
from flash_attention.program.trace import trace

SLOPES = torch.tensor([0.5, 0.25])
TILTED: dict[str, tuple[Any, int]] = {
    "towards the key": (lambda s, b, h, q, k: s + SLOPES[h] * (k - q), 1),
    "towards the query": (lambda s, b, h, q, k: s + SLOPES[h] * (q - k), -1),
    "subtracted": (lambda s, b, h, q, k: s - (k - q) * SLOPES[h], -1),
    "negative": (lambda s, b, h, q, k: -(SLOPES[h] * (q - k)) + s, 1),
}
OTHERS: dict[str, Any] = {
    "a distance without a sign": lambda s, b, h, q, k: s - SLOPES[h] * abs(q - k),
    "a scaled score": lambda s, b, h, q, k: 2.0 * s + SLOPES[h] * (k - q),
    "a factor of the query": lambda s, b, h, q, k: s + SLOPES[q] * (k - q),
    "a position": lambda s, b, h, q, k: s + SLOPES[h] * k,
    "a number less the score": lambda s, b, h, q, k: SLOPES[h] * (k - q) - s,
    "a product of distances": lambda s, b, h, q, k: s + (k - q) * (k - q) * SLOPES[h],
}


@pytest.mark.parametrize("name", TILTED)
def test_a_factor_times_the_distance_tilts_scores(name: str) -> None:
    function, sign = TILTED[name]
    program = trace(function, None).program
    tilt = tilt_of(program)
    assert tilt is not None
    assert tilt.sign == sign
    assert tilt.factor is not None
    assert program.depends[tilt.factor] == HEAD


def test_a_distance_alone_tilts_scores() -> None:
    assert tilt_of(trace(lambda s, b, h, q, k: s - (q - k), None).program) == (None, 1)


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_does(name: str) -> None:
    assert tilt_of(trace(OTHERS[name], None).program) is None


def test_a_mask_alone_does_not() -> None:
    assert tilt_of(trace(None, lambda b, h, q, k: q >= k).program) is None
