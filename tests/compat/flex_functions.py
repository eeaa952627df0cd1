# SPDX-License-Identifier: Apache-2.0
"""Masks and scores that people write for torch's flex_attention, in its terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import and_masks, or_masks

HEADS, KEYS = 4, 56
Function = Callable[..., Any]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def sliding_window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k <= 9)


def prefix_lm(length: int) -> Function:
    return or_masks(causal, lambda b, h, q, k: k < length)


def documents(device: str, seq: int) -> Function:
    ends = torch.tensor([12, 31, 50, 170, 290], device=device)
    ids = torch.bucketize(torch.arange(seq, device=device), ends)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ids[q] == ids[k]

    return and_masks(causal, mask)


def neighbourhood(width: int, reach: int) -> Function:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        row, column = q // width, q % width
        centre = row.clamp(reach, width - 1 - reach), column.clamp(reach, width - 1 - reach)
        near_row = (centre[0] - k // width).abs() <= reach
        return near_row & ((centre[1] - k % width).abs() <= reach)

    return mask


def dilated(b: Any, h: Any, q: Any, k: Any) -> Any:
    distance = torch.abs(q - k)
    return torch.logical_and(distance <= 24, distance % 3 == 0)


def transfusion(device: str) -> Function:
    """Text sees what is before it, and images see themselves too."""
    starts = torch.tensor([[4, 20], [9, 30]], device=device)
    ends = torch.tensor([[12, 27], [15, 38]], device=device)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        seen = q >= k
        for image in range(2):
            start, end = starts[b, image], ends[b, image]
            seen = seen | ((q >= start) & (q < end) & (k >= start) & (k < end))
        return seen

    return mask


def heads_differ(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(h % 2 == 0, q >= k, q <= k + b)


def nothing(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q < 8) & (k < 8)


def masks(device: str = "cpu", seq: int = KEYS) -> dict[str, Function]:
    return {
        "causal": causal,
        "sliding window": sliding_window,
        "prefix lm": prefix_lm(11),
        "documents": documents(device, seq),
        "natten": neighbourhood(math.isqrt(seq) + 1, 2),
        "dilated": dilated,
        "transfusion": transfusion(device),
        "heads and batches differ": heads_differ,
        "rows without keys": nothing,
    }


def scores(device: str = "cpu", seq: int = KEYS) -> dict[str, Function]:
    table = torch.linspace(-2, 2, 2 * seq).to(device)
    bias = torch.randn(HEADS, generator=torch.Generator().manual_seed(1)).to(device)
    slopes = torch.exp2(-torch.arange(1.0, HEADS + 1)).to(device)
    return {
        "alibi": lambda s, b, h, q, k: s - slopes[h] * (q - k).abs(),
        "softcap": lambda s, b, h, q, k: 3 * torch.tanh(s / 3),
        "relative position": lambda s, b, h, q, k: s + (q - k) / 8,
        "table of distances": lambda s, b, h, q, k: s + table[k - q + seq],
        "bias of heads": lambda s, b, h, q, k: s + bias[h] * (b + 1),
        "times": lambda s, b, h, q, k: s * (1 + h) * 0.5,
        "squared": lambda s, b, h, q, k: s * s * 0.25,
        "where": lambda s, b, h, q, k: torch.where(q % 2 == 0, s * 0.5, s),
        "masked": lambda s, b, h, q, k: torch.where(q + 20 >= k, s, -math.inf),
        "sigmoid": lambda s, b, h, q, k: torch.sigmoid(s) + torch.exp(-s.abs()),
    }
