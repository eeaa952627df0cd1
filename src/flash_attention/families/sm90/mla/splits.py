# SPDX-License-Identifier: Apache-2.0
"""How the keys of MLA decoding are split between CTAs, to fill a GPU."""

from __future__ import annotations

from math import ceil, sqrt

from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.mla.features import ctas_of
from flash_attention.families.sm90.split_v import BLOCK_KEYS

BUSY = 0.9  # the share of the multiprocessors that is as good as all of them
MIN_SPLIT_BLOCKS = 2  # a split of one block leaves half of a CTA without work
PARTIALS_OF_A_BLOCK = 8  # that are combined in the time of a key block


def whole(problem: Problem) -> KvSplits:
    """Make one split per tile. The heads of a query share a tile."""
    return KvSplits.whole(problem, BLOCK_KEYS, heads_together=_together(problem))


def of_keys(problem: Problem, keys: int) -> KvSplits:
    """Make splits of `keys` keys, a multiple of a key block, whatever else is in the batch."""
    return KvSplits.of_keys(problem, BLOCK_KEYS, keys, heads_together=_together(problem))


def choose_splits(problem: Problem, num_sms: int) -> KvSplits:
    """Split the keys so that every multiprocessor has the same number of key blocks, unless the
    tiles fill the GPU once, or there are too few keys. The key blocks of a split and the splits to
    combine take the least time together. CTAs that share a tile run together, so that the second
    one to read a key finds it in L2."""
    one_each, sharing = whole(problem), ctas_of(problem)
    if problem.batch_invariant:
        return one_each
    ctas = one_each.num_tiles(problem, sharing) * sharing
    if BUSY * num_sms <= ctas <= num_sms or one_each.key_blocks <= MIN_SPLIT_BLOCKS:
        return one_each
    least = max(MIN_SPLIT_BLOCKS, ceil(sqrt(one_each.key_blocks / PARTIALS_OF_A_BLOCK)))
    return KvSplits.even(
        *(problem, BLOCK_KEYS, max(num_sms // sharing, 1), least),
        heads_together=_together(problem),
        consumers=sharing,
    )


def _together(problem: Problem) -> int:
    """The heads that share a tile, which are all; one if there is none."""
    return max(problem.heads, 1)
