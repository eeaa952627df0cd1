# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import masks, scores
from flash_attention.program.trace import trace
from flash_attention.program.trend import falls_with_distance

SLOPES = torch.tensor([0.5, 0.25])
FALLING: dict[str, Any] = {
    "ALiBi": scores.alibi(SLOPES),
    "a negative factor": lambda s, b, h, q, k: s + -SLOPES[h] * abs(k - q),
    "two negative factors": lambda s, b, h, q, k: s - (-SLOPES[h]) * -abs(k - q),
    "a square": lambda s, b, h, q, k: s - (k - q) * (k - q) / SLOPES[h],
    "a logarithm": lambda s, b, h, q, k: s - SLOPES[h] * torch.log(1 + SLOPES[h] * abs(q - k)),
    "within a cap": lambda s, b, h, q, k: 9 * torch.tanh((s - abs(q - k)) / 9),
    "up to a limit": lambda s, b, h, q, k: s - torch.clamp(abs(q - k), max=100),
}
OTHERS: dict[str, Any] = {
    "a factor of distances that grows": lambda s, b, h, q, k: s + SLOPES[h] * abs(q - k),
    "two factors that fall": lambda s, b, h, q, k: s + abs(q - k) * abs(q - k),
    "a sign": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "one that falls and one that grows": lambda s, b, h, q, k: (
        s - abs(q - k) + torch.sqrt(abs(q - k).float())
    ),
    "a bias of the key": lambda s, b, h, q, k: s + SLOPES[k % 2] - abs(q - k),
    "another distance": lambda s, b, h, q, k: s - abs(q - 2 * k),
    "no distance": lambda s, b, h, q, k: 2 * s - SLOPES[h],
    "a period": lambda s, b, h, q, k: s - abs(q - k) % 7,
}


@pytest.mark.parametrize("name", FALLING)
def test_scores_that_fall_with_the_distance(name: str) -> None:
    assert falls_with_distance(trace(FALLING[name], None).program)
    assert falls_with_distance(trace(FALLING[name], masks.prefix_lm(3)).program)


@pytest.mark.parametrize("name", OTHERS)
def test_scores_that_do_not(name: str) -> None:
    assert not falls_with_distance(trace(OTHERS[name], None).program)


def test_a_mask_alone_does_not() -> None:
    assert not falls_with_distance(trace(None, lambda b, h, q, k: abs(q - k) < 9).program)
