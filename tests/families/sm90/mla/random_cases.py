# SPDX-License-Identifier: Apache-2.0
"""Random calls of MLA decoding."""

from __future__ import annotations

import random

from tests.families.sm90.mla.cases import Case

HEADS = (1, 3, 16, 16, 24, 32, 64, 96, 128, 128)
PAGES = (1, 8, 16, 48, 64, 64, 128, 256)


def random_case(seed: int, *, most_keys: int, most_batch: int, most_queries: int = 4) -> Case:
    """A call that depends on the seed alone."""
    draw = random.Random(seed)
    batch, seq_q = draw.randint(1, most_batch), draw.randint(1, most_queries)
    page_keys = draw.choice(PAGES) if draw.random() < 0.5 else 0
    seq_k = draw.randint(1, most_keys)
    if page_keys:
        seq_k = -(-seq_k // page_keys) * page_keys
    by_length = page_keys or draw.random() < 0.3
    used = tuple(draw.choice((0, 1, seq_k, draw.randint(0, seq_k))) for _ in range(batch))
    mask = draw.choice(("full", "causal", "causal", "window"))
    heads = draw.choice(HEADS)
    packed = draw.random() < 0.3
    queries = (*(draw.randint(0, seq_q) for _ in range(batch - 1)), seq_q)
    return Case(
        *(seq_q, seq_k, heads, batch),
        queries=queries if packed else None,
        used=used if by_length else None,
        page_keys=page_keys,
        split_keys=64 * draw.randint(1, 8) if draw.random() < 0.3 else 0,
        causal=mask == "causal",
        window=(draw.randint(0, seq_k), draw.randint(0, 3)) if mask == "window" else None,
        softcap=draw.choice((0.0, 0.0, 0.0, 5.0)),
        softmax_scale=draw.choice((None, None, 0.02, 0.4)),
        sinks=draw.random() < 0.2,
        sharp=draw.random() < 0.3,
        large=draw.choice((1.0, 1.0, 30.0)),
    )
