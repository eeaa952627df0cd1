# SPDX-License-Identifier: Apache-2.0
"""Masks between parts of a sequence, by definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flash_attention.distributed.mask import Mask
from flash_attention.distributed.spans import Span
from tests.distributed.sequences import masks, sees


@pytest.mark.parametrize(
    ("causal", "window", "mask"),
    [
        (False, None, Mask(None, None)),
        (True, None, Mask(None, 0)),
        (True, (5, 3), Mask(5, 0)),
        (False, (-1, 3), Mask(None, 3)),
        (False, (2, None), Mask(2, None)),
    ],
)
def test_the_mask_of_options(
    causal: bool, window: tuple[int | None, int | None] | None, mask: Mask
) -> None:
    assert Mask.of(causal, window) == mask


@given(masks, st.integers(1, 20), st.data())
def test_areas_and_reach(mask: Mask, length: int, data: st.DataObject) -> None:
    document = (0, length)
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, length))
    seen = [
        (query, key)
        for query in range(start, end)
        for key in range(length)
        if sees(mask, document, query, key)
    ]
    assert mask.area(end, length) - mask.area(start, length) == len(seen)
    found = mask.keys_of(Span(start, end), Span(0, length))
    assert {key for _, key in seen} == set(range(*found))
    back = mask.queries_of(Span(start, end), Span(0, length))
    assert set(range(*back)) == {
        query
        for query in range(length)
        for key in range(start, end)
        if sees(mask, document, query, key)
    }
