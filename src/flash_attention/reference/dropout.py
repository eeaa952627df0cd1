# SPDX-License-Identifier: Apache-2.0
"""Which weights dropout keeps, by the definition in include/fa/attn/dropout.cuh."""

from __future__ import annotations

import torch
from torch import Tensor

from flash_attention.call.dropout import kept_steps

ROUNDS = 7
TILE = 16  # queries and keys of a tile
FACTORS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
Words = tuple[Tensor, Tensor, Tensor, Tensor]


def kept_weights(
    rng_state: Tensor, dropout_p: float, heads: range, queries: range, keys: range
) -> Tensor:
    """Return which weights are kept, bool (heads, queries, keys). Heads are counted over all
    sequences, queries and keys in their own."""
    device, (seed, offset) = rng_state.device, rng_state.unbind()
    tiles = [range(of.start // TILE, -(-of.stop // TILE)) for of in (queries, keys)]
    rows, columns = (torch.arange(4 * of.start, 4 * of.stop, device=device) for of in tiles)
    head = torch.arange(heads.start, heads.stop, device=device)[:, None, None]
    counter = rows[:, None], columns, head + (offset >> 32) & WORD, offset & WORD
    halves = philox(counter, (seed & WORD, seed >> 32 & WORD))
    # two counters, of neighbouring columns, have the bits of 32 numbers: bit w in word w
    words = [word[..., half::2] for half in range(2) for word in halves]
    words.append(torch.zeros_like(words[0]))  # a threshold that keeps all has one bit more
    kept, dropped = kept_steps(dropout_p), torch.full_like(words[0], WORD)
    for w, word in enumerate(words):
        dropped = word & dropped if kept >> w & 1 else word | dropped
    is_kept = dropped[..., None] >> torch.arange(32, device=device) & 1 == 0
    # (head, tile, x, tile, y), then the bits of a number's place: 8 of a key, 8 of a query, 2 of a
    # key, and the last ones of a query and a key
    each = is_kept.view(len(heads), len(tiles[0]), 4, len(tiles[1]), 2, 2, 2, 2, 2, 2)
    whole = each.permute(0, 1, 6, 2, 8, 3, 5, 4, 7, 9)
    whole = whole.reshape(len(heads), TILE * len(tiles[0]), TILE * len(tiles[1]))
    first_q, first_k = queries.start % TILE, keys.start % TILE
    return whole[:, first_q:, first_k:][:, : len(queries), : len(keys)]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return the four words that Philox4x32-7 makes of a counter and a key: of words in int64."""
    a, b, c, d = counter
    of_a, of_c = key
    for _ in range(ROUNDS):
        (high_a, low_a), (high_c, low_c) = _multiplied(a, FACTORS[0]), _multiplied(c, FACTORS[1])
        a, b, c, d = high_c ^ b ^ of_a, low_c, high_a ^ d ^ of_c, low_a
        of_a, of_c = of_a + KEY_STEPS[0] & WORD, of_c + KEY_STEPS[1] & WORD
    return a, b, c, d


def _multiplied(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a product, whose 64 bits int64 does not hold."""
    high, low = (word >> 16) * factor, (word & 0xFFFF) * factor
    return high + (low >> 16) >> 16, (high << 16) + low & WORD
