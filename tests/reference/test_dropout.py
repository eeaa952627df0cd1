# SPDX-License-Identifier: Apache-2.0
"""Which weights dropout keeps: the numbers of Philox, their layout, and their statistics."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, dropout_mask
from flash_attention.call.dropout import STEPS, kept_steps
from flash_attention.reference.dropout import kept_weights, philox

STATE = torch.tensor([0x0123456789ABCDEF, -0x7EDCBA9876543210])
KNOWN = [  # counter, key and words of the authors' tests (Random123, kat_vectors)
    ((0,) * 4, (0,) * 2, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
]


def words_of(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    a, b, c, d = map(torch.tensor, counter)
    e, f = map(torch.tensor, key)
    return tuple(int(word) for word in philox((a, b, c, d), (e, f)))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_numbers_are_those_of_philox(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert words_of(counter, key) == words


@pytest.mark.parametrize(("head", "query", "key"), [(0, 0, 0), (5, 37, 58), (3, 1000, 333)])
def test_a_weight_has_the_number_that_its_place_names(head: int, query: int, key: int) -> None:
    """By the definition in include/fa/attn/dropout.cuh, one weight at a time."""
    seed, offset = (int(number) % (1 << 64) for number in STATE)
    low, high = 0xFFFFFFFF, 32
    words: list[int] = []
    for half in range(2):
        counter = (
            query // 16 * 4 + query % 8 // 2,
            key // 16 * 4 + key % 8 // 4 * 2 + half,
            (head + (offset >> high)) & low,
            offset & low,
        )
        words += words_of(counter, (seed & low, seed >> high))
    bit = (
        16 * (key // 8 % 2) + 8 * (query // 8 % 2) + 4 * (key // 2 % 2) + 2 * (query % 2) + key % 2
    )
    number = sum((word >> bit & 1) << place for place, word in enumerate(words))
    heads, queries, keys = (range(n, n + 1) for n in (head, query, key))
    for kept in (number, number + 1):  # it is the first that is dropped, or the last that is kept
        p = 1 - kept / STEPS
        if 0 < p < 1:
            mine = kept_weights(STATE, p, heads, queries, keys)
            assert mine.tolist() == [[[number < kept]]]


def test_a_part_of_the_weights_is_the_same_alone() -> None:
    whole = dropout_mask(STATE, 0.4, (2, 3, 50, 70))
    part = kept_weights(STATE, 0.4, range(4, 6), range(7, 50), range(33, 70))
    assert torch.equal(whole[1, 1:, 7:, 33:], part)


@pytest.mark.parametrize(
    ("p", "kept"), [(0.0, 256), (1e-9, 255), (0.1, 230), (0.5, 128), (0.75, 64), (0.9999, 1)]
)
def test_the_probability_is_rounded_but_never_to_0_or_1(p: float, kept: int) -> None:
    assert kept_steps(p) == kept
    assert float(dropout_mask(STATE, p, (1, 2, 512, 512)).float().mean()) == pytest.approx(
        kept / STEPS, abs=5 * math.sqrt(kept / STEPS * (1 - kept / STEPS) / 2**19)
    )


def correlation(a: Tensor, b: Tensor) -> float:
    """The correlation of two masks, times the root of their size: normal, if they have nothing to
    do with each other."""
    x, y = (t.double().flatten() - t.double().mean() for t in (a, b))
    return float((x * y).mean() / (x.std() * y.std()) * math.sqrt(x.numel()))


def test_weights_do_not_depend_on_each_other() -> None:
    mask = dropout_mask(STATE, 0.3, (2, 2, 256, 256))
    others = [dropout_mask(STATE + torch.tensor(s), 0.3, mask.shape) for s in ((1, 0), (0, 1))]
    others += [dropout_mask(STATE + (1 << 32), 0.3, mask.shape)]
    pairs = {
        "seeds, offsets and their high halves": [(mask, other) for other in others],
        "heads and sequences": [(mask[:, 0], mask[:, 1]), (mask[0], mask[1])],
        "queries": [(mask[..., n:, :], mask[..., :-n, :]) for n in (1, 2, 8, 16)],
        "keys": [(mask[..., n:], mask[..., :-n]) for n in (1, 2, 8, 16)],
        "queries and keys": [(mask, mask.mT)],
    }
    found = {what: [correlation(a, b) for a, b in each] for what, each in pairs.items()}
    assert all(abs(c) < 4.5 for each in found.values() for c in each), found
    of_rows = mask.float().mean(-1).flatten()
    deviation = math.sqrt(kept_steps(0.3) / STEPS * (1 - kept_steps(0.3) / STEPS) / 256)
    assert float(of_rows.std()) == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((STATE, 1.0, (1, 1, 2, 2)), r"dropout_p is 1\.0; allowed are"),
        (
            (STATE.int(), 0.1, (1, 1, 2, 2)),
            r"is torch\.int32 \(2,\) on cpu; pass .* torch\.int64 \(2,\)",
        ),
        ((STATE[:1], 0.1, (1, 1, 2, 2)), r"rng_state is torch\.int64 \(1,\) on cpu; pass"),
        (([1, 2], 0.1, (1, 1, 2, 2)), r"rng_state is a list"),
        ((STATE, 0.1, (1, 2, 2)), r"shape is \(1, 2, 2\); pass \(batch, heads, seq_q, seq_k\)"),
    ],
)
def test_what_a_mask_is_not_made_of_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        dropout_mask(*arguments)  # type: ignore[arg-type]
