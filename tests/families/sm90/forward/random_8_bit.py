# SPDX-License-Identifier: Apache-2.0
"""Random calls with keys and values of 8 bits, some with queries of 8 bits."""

from __future__ import annotations

import random
from typing import Any

import torch

from flash_attention.call.results import DESCALED_KEYS
from tests.families.sm90.forward.cases_8_bit import Case

WIDTHS = (64, 128, 128, 256, 80)
PAGES = (1, 16, 24, 64)


def random_case(seed: int, *, most_keys: int, most_queries: int, most_batch: int) -> Case:
    """A call that depends on the seed alone. The menu is short, so that kernels are shared."""
    draw = random.Random(seed)
    batch, heads_k = draw.randint(1, most_batch), draw.randint(1, 3)
    seq_q = draw.choice((1, 1, draw.randint(1, 8), draw.randint(1, most_queries)))
    seq_k = draw.randint(1, most_keys)
    place = draw.choice(("dense", "lengths", "pages", "pages", "packed"))
    page = draw.choice(PAGES) if place == "pages" else 0
    if page:
        seq_k = -(-seq_k // page) * page
    used = tuple(draw.choice((0, 1, seq_k, draw.randint(0, seq_k))) for _ in range(batch))
    packs_q = place == "packed" or (place == "pages" and draw.random() < 0.3)
    blocks = -(-seq_k // DESCALED_KEYS) + draw.randint(0, 1) if draw.random() < 0.3 else 0
    return Case(
        *(seq_q, seq_k, heads_k * draw.choice((1, 4)), heads_k, batch, draw.choice(WIDTHS)),
        dtype=draw.choice((torch.bfloat16, torch.float16)),
        page=page,
        used=used if place in ("lengths", "pages") else (),
        lengths_q=tuple(draw.randint(1, seq_q) for _ in used) if packs_q else (),
        lengths_k=tuple(draw.randint(1, seq_k) for _ in used) if place == "packed" else (),
        sinks=draw.random() < 0.2,
        per_head=blocks > 0 or draw.random() < 0.7,
        blocks=blocks,
        sharp=draw.random() < 0.3 and place != "packed",
        q_8_bit=not blocks and draw.random() < 0.3,
        keywords=tuple(_keywords(draw, seq_k).items()),
    )


def _keywords(draw: random.Random, seq_k: int) -> dict[str, Any]:
    mask = draw.choice(("full", "causal", "causal", "window"))
    keywords: dict[str, Any] = {"causal": True} if mask == "causal" else {}
    if mask == "window":
        keywords["window"] = (draw.randint(0, seq_k), draw.randint(0, 3))
    if draw.random() < 0.2:
        keywords["softcap"] = 5.0
    if draw.random() < 0.2:
        keywords["split_keys"] = 64 * draw.randint(1, 8)
    return keywords
