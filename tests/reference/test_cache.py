# SPDX-License-Identifier: Apache-2.0
"""Updates of a KV cache by torch: what is stored where, and rotations by their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall, Rotary
from flash_attention.reference.cache import rotated, update_with_torch
from tests.cache_calls import (
    BATCH,
    COUNTS,
    KINDS,
    NEW,
    PAGE,
    cache_call,
    numbers,
    packed_call,
    with_own_cache,
)


def row_of(call: CacheCall, cache: Tensor, sequence: int, row: int) -> Tensor:
    """A row of a sequence, found step by step."""
    place = sequence if call.batch_index is None else int(call.batch_index[sequence])
    if call.table is None:
        return cache[place, row]
    return cache[int(call.table[place, row // PAGE]), row % PAGE]


@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_go_behind_those_in_use(kind: str) -> None:
    call = cache_call(kind)
    before = with_own_cache(call)
    keys = update_with_torch(call)
    assert call.k is not None
    assert call.v is not None
    pads = [0] * BATCH if call.leftpad is None else call.leftpad.tolist()
    assert isinstance(call.lengths, Tensor)
    for sequence, (length, pad) in enumerate(zip(call.lengths.tolist(), pads, strict=True)):
        for cache, old, new in (
            (call.k_cache, before.k_cache, call.k),
            (call.v_cache, before.v_cache, call.v),
        ):
            for row in range(length):
                assert torch.equal(
                    row_of(call, cache, sequence, row), row_of(call, old, sequence, row)
                )
            for row in range(NEW):
                found = row_of(call, cache, sequence, length + row)
                assert torch.equal(found, new[sequence, row])
        assert int(keys.used[sequence]) == length + NEW - pad
        check_keys(call, keys.table, keys.starts, sequence, pad, length + NEW)
    changed = (call.k_cache != before.k_cache).flatten(2).any(-1)
    assert int(changed.sum()) == BATCH * NEW


@pytest.mark.parametrize("kind", KINDS)
def test_packed_new_rows_go_behind_those_in_use(kind: str) -> None:
    call = packed_call(kind)
    before = with_own_cache(call)
    keys = update_with_torch(call)
    assert call.k is not None
    assert isinstance(call.lengths, Tensor)
    pads = [0] * BATCH if call.leftpad is None else call.leftpad.tolist()
    first = 1
    for sequence, (length, count) in enumerate(zip(call.lengths.tolist(), COUNTS, strict=True)):
        for row in range(count):
            found = row_of(call, call.k_cache, sequence, length + row)
            assert torch.equal(found, call.k[first + row])
        assert int(keys.used[sequence]) == length + count - pads[sequence]
        first += count
    changed = (call.k_cache != before.k_cache).flatten(2).any(-1)
    assert int(changed.sum()) == sum(COUNTS)


def check_keys(
    call: CacheCall, table: Tensor | None, starts: Tensor | None, sequence: int, pad: int, end: int
) -> None:
    """The keys are found where the description says."""
    if starts is not None:
        rows = call.k_cache.flatten(0, 1)[int(starts[sequence]) :]
        for row in range(pad, end):
            assert torch.equal(rows[row - pad], row_of(call, call.k_cache, sequence, row))
    if table is not None:
        page = call.own_page_rows
        pages = call.k_cache.flatten(0, 1).unflatten(0, (-1, page))
        for row in range(pad, end):
            found = pages[int(table[sequence, (row - pad) // page]), (row - pad) % page]
            assert torch.equal(found, row_of(call, call.k_cache, sequence, row))


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_rotation_is_a_product_of_complex_numbers(interleaved: bool) -> None:
    x = torch.randn(2, 3, 4, 24, dtype=torch.float64)
    angle = torch.rand(9, 8, dtype=torch.float64) * 6
    at = numbers([0, 3, 5], [1, 2, 8])
    turned = rotated(x, Rotary(angle.cos(), angle.sin(), interleaved, None, False), at)
    pairs = x[..., :16].unflatten(-1, (8, 2) if interleaved else (2, 8))
    first, second = pairs.unbind(-1 if interleaved else -2)
    wanted = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)[
        at.long()
    ].unsqueeze(2)
    halves = torch.stack((wanted.real, wanted.imag), -1 if interleaved else -2).flatten(-2)
    torch.testing.assert_close(turned[..., :16], halves)
    assert torch.equal(turned[..., 16:], x[..., 16:])
