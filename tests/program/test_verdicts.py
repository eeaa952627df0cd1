# SPDX-License-Identifier: Apache-2.0
"""Verdicts on tiles against every element of them: none may be refuted, and those of masks that
people use are exact."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.program.torch_reader import grid, see
from flash_attention.program.trace import Traced, trace, trace_mask
from flash_attention.program.verdict import Tile, Verdict, verdict
from tests.devices import DEVICES
from tests.program.grammar import Sizes, random_function
from tests.program.on_device import verdicts_on_device

SIZES = Sizes(2, 2, 96, 112)
FUNCTIONS, TILES = 250, 40
LENGTH = 512
DOCUMENTS = torch.repeat_interleave(torch.arange(5), torch.tensor([64, 100, 150, 6, 192]))
PREFIX = torch.tensor([100, 300], dtype=torch.int32)


def truth(seen: Tensor, tile: Tile) -> Verdict:
    part = seen[tile.batch, tile.head, tile.q0 : tile.q1 + 1, tile.k0 : tile.k1 + 1]
    return Verdict.FULL if part.all() else Verdict.PARTIAL if part.any() else Verdict.EMPTY


def random_tiles(draw: random.Random, sizes: Sizes, count: int) -> list[Tile]:
    def span(size: int) -> tuple[int, int]:
        first = draw.randrange(size)
        return first, min(size - 1, first + draw.choice((0, 3, 15, 31, size)))

    return [
        Tile(
            draw.randrange(sizes.batch),
            draw.randrange(sizes.heads),
            *span(sizes.queries),
            *span(sizes.keys),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("first", range(0, FUNCTIONS, 50))
def test_no_verdict_is_refuted(first: int) -> None:
    at = grid(SIZES.batch, SIZES.heads, SIZES.queries, SIZES.keys)
    counts: Counter[Verdict] = Counter()
    for seed in range(first, first + 50):
        traced = trace_mask(random_function(seed, SIZES)[1])
        seen = see(traced, at)
        for tile in random_tiles(random.Random(seed), SIZES, TILES):
            given = verdict(traced, tile)
            counts[given] += 1
            assert given in (Verdict.PARTIAL, truth(seen, tile)), (seed, tile)
    assert counts[Verdict.PARTIAL] < 0.6 * 50 * TILES


def random_table(seed: int) -> Traced:
    """A mask that is read from a tensor with areas of one value, at indices of both kinds."""
    draw = random.Random(seed)
    table = torch.zeros(2, 200, 200, dtype=draw.choice((torch.bool, torch.uint8, torch.float32)))
    table[draw.randrange(2) :] = 1
    for _ in range(draw.randrange(5)):
        top, left = draw.randrange(200), draw.randrange(200)
        part = slice(top, top + draw.choice((40, 90, 200))), slice(left, left + 100)
        table[(draw.randrange(2), *part)] = draw.randrange(2)
    table = table if draw.random() < 0.5 else table.mT
    a, b = draw.choice((1, 1, 7, 16)), draw.choice((1, 1, 5, 32))
    shift = draw.choice((0, 0, -30, 90))

    def mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
        row = query // a if a > 1 else query
        column = key // b if b > 1 else (key + shift).clamp(0, 199)
        seen = table[head, row, column] != 0
        return seen & (table[1, 5, column] == 0) if draw.random() < 0.3 else seen

    return trace_mask(mask)


def test_no_verdict_on_a_table_is_refuted() -> None:
    at = grid(SIZES.batch, SIZES.heads, SIZES.queries, SIZES.keys)
    counts: Counter[Verdict] = Counter()
    for seed in range(50):
        traced = random_table(seed)
        seen = see(traced, at)
        for tile in random_tiles(random.Random(seed), SIZES, TILES):
            given = verdict(traced, tile)
            counts[given] += 1
            assert given in (Verdict.PARTIAL, truth(seen, tile)), (seed, tile)
    assert counts[Verdict.EMPTY] > 500
    assert counts[Verdict.FULL] > 100


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(6))
def test_cuda_gives_the_same_verdicts_on_a_table(seed: int, device: str) -> None:
    traced = random_table(seed)
    tiles = random_tiles(random.Random(seed), SIZES, TILES)
    assert verdicts_on_device(traced, tiles, device) == [verdict(traced, tile) for tile in tiles]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(0, FUNCTIONS, 20))
def test_cuda_gives_the_same_verdicts(seed: int, device: str) -> None:
    traced = trace_mask(random_function(seed, SIZES)[1])
    tiles = random_tiles(random.Random(seed), SIZES, TILES)
    assert verdicts_on_device(traced, tiles, device) == [verdict(traced, tile) for tile in tiles]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k <= 100) & (k - q <= 30)


def prefix_lm(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k <= q) | (k < PREFIX[b])


def documents_and_causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (k <= q)


def sink_and_window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k <= q) & ((q - k < 130) | (k < 4))


def dilated(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k) % 3 == 0


def neighbourhood(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (abs(q // 32 - k // 32) <= 3) & (abs(q % 32 - k % 32) <= 3)


def by_head(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k <= 50 * (h + 1)


def cancelling(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k) + k >= 2 * k - k


def of_a_float(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.exp2(-(h + 1.0)) * abs(q - k) < 40.3


def strided(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k // 64) % 2 == (q // 64) % 2


SEEN = (torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(3)) < 0.4)[:, None]
ELEMENTS = SEEN.repeat_interleave(64, 2).repeat_interleave(64, 3).transpose(0, 1)


def of_blocks(b: Any, h: Any, q: Any, k: Any) -> Any:
    return SEEN[b, 0, q // 64, k // 64]


def of_larger_blocks(b: Any, h: Any, q: Any, k: Any) -> Any:
    return SEEN[b, 0, q // 100, k // 200]


def of_elements(b: Any, h: Any, q: Any, k: Any) -> Any:
    return ELEMENTS[0, b, q, k] | (k == q)


NAMED: list[Callable[..., Any]] = [
    causal,
    window,
    prefix_lm,
    documents_and_causal,
    sink_and_window,
    dilated,
    neighbourhood,
    by_head,
    cancelling,
    of_a_float,
    strided,
    of_blocks,
    of_larger_blocks,
    of_elements,
]


def tiles_of(size: int) -> list[Tile]:
    starts = range(0, LENGTH, size)
    return [
        Tile(b, h, q, q + size - 1, k, k + size - 1)
        for b in (0, 1)
        for h in (0, 1)
        for q in starts
        for k in starts
    ]


def needless(traced: Traced, size: int) -> Counter[Verdict]:
    """What the tiles are that are called partial and are not."""
    seen = see(traced, grid(2, 2, LENGTH, LENGTH))
    pairs = [(verdict(traced, tile), truth(seen, tile)) for tile in tiles_of(size)]
    assert all(given in (Verdict.PARTIAL, right) for given, right in pairs)
    return Counter(right for given, right in pairs if given != right)


@pytest.mark.parametrize("mask", NAMED)
def test_verdicts_on_masks_that_people_use_are_exact(mask: Any) -> None:
    assert needless(trace_mask(mask), 64) == Counter()


def test_documents_are_known_by_blocks() -> None:
    """Where tiles are smaller than the blocks of the tables, some are called partial needlessly."""
    wrong = needless(trace_mask(documents_and_causal), 32)
    assert wrong == {Verdict.FULL: 16, Verdict.EMPTY: 16}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", NAMED)
def test_cuda_gives_the_same_verdicts_on_masks_that_people_use(mask: Any, device: str) -> None:
    traced = trace_mask(mask)
    tiles = tiles_of(128)
    assert verdicts_on_device(traced, tiles, device) == [verdict(traced, tile) for tile in tiles]


NANS = torch.tensor([1.0] * 64 + [float("nan")] + [1.0] * 63)
INFINITIES = torch.tensor([-float("inf")] * 64 + [0.0] * 64)
LARGE = torch.full((128,), 2**31 - 1)
ZERO = torch.zeros(2, dtype=torch.int32)
LONG = torch.zeros(2**13, dtype=torch.int32)


@pytest.mark.parametrize(
    ("mask", "verdicts"),
    [
        (lambda b, h, q, k: NANS[k] > 0, [1, 2]),
        (lambda b, h, q, k: NANS[k] <= float("inf"), [1, 2]),
        (lambda b, h, q, k: INFINITIES[k] > -1e30, [0, 1]),
        (lambda b, h, q, k: INFINITIES[k] * 0.0 <= 0.0, [2, 2]),
        (lambda b, h, q, k: (q + 1) * (k + 50000) * 50000 > 0, [2, 2]),
        (lambda b, h, q, k: LARGE[k] + LARGE[q] > 0, [2, 2]),
        (lambda b, h, q, k: LARGE[k] >= LARGE[q], [1, 1]),
        (lambda b, h, q, k: (q // (ZERO[h] - 1) <= 0) & (k < 0), [2, 2]),
        (lambda b, h, q, k: 1.0 / (q - 5) < 2.0, [2, 2]),
        (lambda b, h, q, k: torch.log(q - 5.0) < 9.0, [2, 2]),
        (lambda b, h, q, k: LONG[q * 100] == 0, [2, 2]),
        (lambda b, h, q, k: LONG[k * 63] == 0, [1, 1]),
        (lambda b, h, q, k: ELEMENTS[0, 0, q // 4, k // 4].int() < 2, [2, 2]),
        (lambda b, h, q, k: ELEMENTS[0, 0, q // 8, k // 8].int() < 2, [1, 1]),
        (lambda b, h, q, k: (k - q) % 200 < 200, [1, 1]),
        (lambda b, h, q, k: (q & 15) < 16, [1, 1]),
        (lambda b, h, q, k: True, [1, 1]),
    ],
)
def test_verdicts_at_the_ends_of_numbers(mask: Any, verdicts: list[int]) -> None:
    traced = trace_mask(mask)
    tiles = [Tile(0, 0, 0, 63, 0, 63), Tile(0, 0, 0, 63, 64, 127)]
    assert [verdict(traced, tile) for tile in tiles] == verdicts
    assert verdicts_on_device(traced, tiles) == verdicts


def test_without_a_mask_every_tile_is_full() -> None:
    traced = trace()
    assert verdict(traced, Tile(0, 0, 0, 63, 0, 63)) is Verdict.FULL
    assert verdicts_on_device(traced, [Tile(0, 0, 0, 63, 0, 63)]) == [Verdict.FULL]
