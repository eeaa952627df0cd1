# SPDX-License-Identifier: Apache-2.0
"""Which mask functions describe a built-in mask, and score functions without their mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import Function, masks, scores
from flash_attention.program.built_in import BuiltInMask, built_in_mask, without_mask
from flash_attention.program.trace import trace

SLOPES, TABLE = torch.tensor([0.5, 0.25]), torch.arange(40)
CAUSAL = BuiltInMask(None)


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (masks.causal(), CAUSAL),
        (lambda b, h, q, k: q >= k, CAUSAL),
        (masks.window(7, 0), BuiltInMask(7)),
        (lambda b, h, q, k: (q - k <= 7) & (k <= q), BuiltInMask(7)),
        (lambda b, h, q, k: (q - k < 7) & (k <= q), BuiltInMask(6)),
        (lambda b, h, q, k: (q - k < 7) & (k <= q) & (q - k <= 3), BuiltInMask(3)),
        (lambda b, h, q, k: (q >= k) & (q >= k), CAUSAL),
        (masks.window(0, 0), BuiltInMask(0)),
        (lambda b, h, q, k: (q - k < 0) & (k <= q), None),  # which hides every key
        (lambda b, h, q, k: q > k, None),
        (lambda b, h, q, k: k >= q, None),
        (lambda b, h, q, k: q - k <= 7, None),
        (lambda b, h, q, k: (q >= k) | (q - k <= 7), None),
        (lambda b, h, q, k: (q >= k) & (k - q <= 7), None),
        (lambda b, h, q, k: (q >= k) & (q - k <= h), None),
        (lambda b, h, q, k: (q >= k) & (q - k <= TABLE[h]), None),
        (lambda b, h, q, k: (q >= k) & (q - k <= 7.5), None),
        (lambda b, h, q, k: q + 0 * h >= k, None),
        (masks.causal(1), None),
        (masks.window(7, 3), None),
        (masks.prefix_lm(3), None),
        (masks.sink_window(2, 7), None),
        (masks.causal() & masks.documents(TABLE), None),
    ],
)
def test_masks_that_are_built_in(mask: Any, found: BuiltInMask | None) -> None:
    assert built_in_mask(trace(mask=mask)) == found
    assert Function(mask=mask).built_in_mask == found


def test_without_a_mask_there_is_none() -> None:
    assert built_in_mask(trace(score=scores.alibi(SLOPES))) is None


def test_a_score_without_its_mask_is_the_score_alone() -> None:
    limit, factor = 7, 0.75

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * factor + SLOPES[h] * (q - k)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (q - k <= limit) & (TABLE[q] >= 0)

    both, alone = trace(score=score, mask=mask), trace(score=score)
    assert without_mask(both).program == alone.program
    assert without_mask(both).numbers == alone.numbers
    assert without_mask(trace(score=score, mask=mask)).program is without_mask(both).program
    assert [t is SLOPES for t in without_mask(both).tensors] == [True]
    assert Function(mask=mask).score_alone is None
