# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings, written out."""

from __future__ import annotations

import torch
from torch import Tensor


def rotation(positions: int, dim: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    angle = torch.rand(positions, dim // 2, generator=torch.Generator().manual_seed(7)) * 6
    return angle.cos().bfloat16().to(device), angle.sin().bfloat16().to(device)


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rows (rows, heads, d), each by the angles of its row of the tables, written out."""
    result, dim = x.float().clone(), 2 * cos.shape[1]
    for i in range(dim // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + dim // 2)
        c, s = cos[:, i].float()[:, None], sin[:, i].float()[:, None]
        result[..., a] = x[..., a].float() * c - x[..., b].float() * s
        result[..., b] = x[..., a].float() * s + x[..., b].float() * c
    return result.to(x.dtype)
