# SPDX-License-Identifier: Apache-2.0
"""Functions that people wrote for FlexAttention, as they are, against torch's own results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import (
    and_masks,
    create_mask,
    flex_attention,
    noop_mask,
    or_masks,
)

from flash_attention.program.torch_reader import change_score, grid, see
from flash_attention.program.trace import trace_mask, trace_score

BATCH, HEADS, QUERIES, KEYS = 2, 4, 24, 36
DOCUMENTS = torch.arange(KEYS) // 7
OFFSETS = torch.tensor([0, 7, 14, 21, 28, 35])
MODALITIES = torch.tensor([[[2, 4], [9, 3]], [[0, 6], [20, 5]]])
PREFIX = torch.tensor([5, 11])
BIAS = torch.randn(HEADS, QUERIES, KEYS)
TABLE = torch.randn(HEADS, QUERIES + KEYS)
SCALAR = torch.tensor(0.25)
SPANS = [(3, 9), (15, 20)]
WIDTH, KERNEL = 6, 3


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    causal_mask = q_idx >= kv_idx
    window_mask = q_idx - kv_idx <= 5
    return causal_mask & window_mask


def prefix(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= PREFIX[b]


def documents(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]


def neighbourhood(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    q_x, q_y = q_idx // WIDTH, q_idx % WIDTH
    kv_x, kv_y = kv_idx // WIDTH, kv_idx % WIDTH
    kernel_x = q_x.clamp(KERNEL // 2, (WIDTH - 1) - KERNEL // 2)
    kernel_y = q_y.clamp(KERNEL // 2, (WIDTH - 1) - KERNEL // 2)
    return ((kernel_x - kv_x).abs() <= KERNEL // 2) & ((kernel_y - kv_y).abs() <= KERNEL // 2)


def transfusion(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    mask = q_idx >= kv_idx
    for start, end in SPANS:
        inside = (q_idx >= start) & (q_idx < end) & (kv_idx >= start) & (kv_idx < end)
        mask |= inside
    return mask


def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    diff = torch.abs(q_idx - kv_idx)
    return torch.logical_and(diff <= 12, torch.remainder(diff, 4) == 0)


def modalities(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    mask = q_idx >= kv_idx
    for offset, length in MODALITIES[b]:
        mask = mask | ((q_idx >= offset) & (kv_idx < (offset + length)))
    return mask


def documents_by_offsets(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    q_logical = q_idx - OFFSETS[DOCUMENTS[q_idx]]
    kv_logical = kv_idx - OFFSETS[DOCUMENTS[kv_idx]]
    return documents(b, h, q_idx, kv_idx) & causal(b, h, q_logical, kv_logical)


def spread(x: Any) -> Any:
    x = x & 0x55555555
    x = (x | (x >> 1)) & 0x33333333
    x = (x | (x >> 2)) & 0x0F0F0F0F
    return (x | (x >> 4)) & 0x00FF00FF


def morton(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    rows = (spread(q_idx) - spread(kv_idx)).abs() <= 1
    return rows & ((spread(q_idx >> 1) - spread(kv_idx >> 1)).abs() <= 1)


MASKS = [
    documents_by_offsets,
    morton,
    causal,
    window,
    prefix,
    documents,
    neighbourhood,
    transfusion,
    dilated,
    noop_mask,
    and_masks(causal, documents),
    or_masks(causal, prefix),
]


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: Any) -> None:
    wanted = create_mask(mask, BATCH, HEADS, QUERIES, KEYS, device="cpu")
    assert torch.equal(see(trace_mask(mask), grid(BATCH, HEADS, QUERIES, KEYS)), wanted)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    scale = torch.exp2(-((h + 1) * 8.0 / HEADS))
    bias = (kv_idx - q_idx) * scale
    return score + bias


def alibi_of_a_power(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    slope = 2 ** (-8 * (h + 1) / 8)
    return score - slope * torch.abs(q_idx - kv_idx)


def packed(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    start = OFFSETS[b]
    length = OFFSETS[b + 1] - start
    safe_kv_idx = torch.clamp(kv_idx, max=length - 1)
    return score + TABLE[h, start + safe_kv_idx]


def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + (q_idx - kv_idx)


def additive(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + BIAS[h, q_idx, kv_idx]


def relative_table(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + TABLE[h, kv_idx - q_idx + QUERIES]


def capped_and_causal(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    score = torch.tanh(score / 20) * 20
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def checkerboard(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
    return torch.where(torch.abs(kv_idx - q_idx) % 2 == 0, score * 2.0, score)


def of_a_scalar(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * SCALAR + torch.zeros_like(score) + torch.tensor(1.5)


SCORES = [
    alibi_of_a_power,
    packed,
    alibi,
    relative,
    additive,
    relative_table,
    capped_and_causal,
    checkerboard,
    of_a_scalar,
]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("change", SCORES)
def test_scores(change: Any) -> None:
    """Attention to unit vectors gives the weights, so that all scores are compared."""
    q = torch.randn(BATCH, HEADS, QUERIES, 8, dtype=torch.float64)
    k = torch.randn(BATCH, HEADS, KEYS, 8, dtype=torch.float64)
    v = torch.eye(KEYS, dtype=torch.float64).expand(BATCH, HEADS, KEYS, KEYS)
    score = q @ k.mT / 8**0.5
    changed = change_score(trace_score(change), score, grid(BATCH, HEADS, QUERIES, KEYS))
    with torch.no_grad():
        wanted = flex_attention(q, k, v, score_mod=change)
    torch.testing.assert_close(changed.softmax(-1), wanted, rtol=1e-5, atol=1e-6)


def test_a_loop_over_rows_of_a_tensor() -> None:
    """torch would need a mask without a batch dimension for it."""
    seen = see(trace_mask(modalities), grid(BATCH, HEADS, QUERIES, KEYS))
    for b, spans in enumerate(MODALITIES.tolist()):
        for q in range(QUERIES):
            row = [q >= k or any(q >= o and k < o + n for o, n in spans) for k in range(KEYS)]
            assert seen[b, 0, q].tolist() == row
