# SPDX-License-Identifier: Apache-2.0
"""Changes of scores that many models use, as score functions: f(score, batch, head, query, key)
returns the new score."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError, quoted

ScoreFunction = Callable[[Any, Any, Any, Any, Any], Any]
"""From a score, a batch, a head, a query and a key to the new score."""


def alibi(slopes: Tensor) -> ScoreFunction:
    """Attention with linear biases: the distance times the slope of the head is subtracted.

    - `slopes`: as [heads] or [batch, heads]; those of the paper are `alibi_slopes(heads)`.
    """
    _check(slopes, "slopes", 1, 2)
    return partial(_alibi, slopes)


def _alibi(slopes: Tensor, score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    slope = slopes[head] if slopes.ndim == 1 else slopes[batch, head]
    return score - slope * (query - key).abs()


def alibi_slopes(heads: int, device: torch.device | str | None = None) -> Tensor:
    """The slopes of the ALiBi paper: 2^(-8/n), 2^(-16/n) and so on for n heads; where n is no power
    of two, those of the power below it, and every other of the power above it."""
    if heads < 1:
        raise UnsupportedError(f"heads is {heads}; it must be 1 or more")
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def relative_bias(table: Tensor) -> ScoreFunction:
    """A bias that depends on the head and the distance is added.

    - `table`: as [heads, 2 n + 1], for distances key - query from -n to n. Keys that are farther
      away have the bias of the farthest.
    """
    _check(table, "table", 2)
    if table.shape[1] % 2 == 0:
        raise UnsupportedError(
            f"table has {table.shape[1]} columns; an odd number is needed, with the distance 0 in"
            " the middle"
        )
    return partial(_relative_bias, table, table.shape[1] // 2)


def _relative_bias(
    table: Tensor, reach: int, score: Any, batch: Any, head: Any, query: Any, key: Any
) -> Any:
    return score + table[head, torch.clamp(key - query, -reach, reach) + reach]


def additive_bias(bias: Tensor) -> ScoreFunction:
    """A bias for every query and key is added.

    - `bias`: as [queries, keys], [heads, queries, keys] or [batch, heads, queries, keys]. A
      dimension of size 1 stands for all.
    """
    _check(bias, "bias", 2, 3, 4)
    return partial(_additive_bias, bias)


def _additive_bias(bias: Tensor, score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    at = (batch, head, query, key)[-bias.ndim :]
    sizes = zip(at, bias.shape, strict=True)
    return score + bias[tuple(index if size > 1 else 0 for index, size in sizes)]


def softcap(cap: float) -> ScoreFunction:
    """Scores are kept between -cap and cap by cap * tanh(score / cap)."""
    if not 0 < cap < math.inf:
        raise UnsupportedError(f"cap is {cap}; it must be positive and finite")
    return partial(_softcap, cap)


def _softcap(cap: float, score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return cap * torch.tanh(score / cap)


def _check(tensor: Tensor, name: str, *dimensions: int) -> None:
    if not isinstance(tensor, Tensor):
        raise UnsupportedError(f"{name} is {quoted(tensor)}; pass a tensor of floats")
    if not tensor.is_floating_point() or tensor.ndim not in dimensions:
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; it must have"
            f" {' or '.join(map(str, dimensions))} dimensions and a dtype of floats"
        )
