# SPDX-License-Identifier: Apache-2.0
"""Masks and scores of the kinds that the suites of attention-gym and of torch's flex_attention
have."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention.flex_attention import and_masks, noop_mask

from tests.compat.flex_functions import HEADS, KEYS, Function, causal

BATCH = 2


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _near(centre: Any, key: Any, reach: int, size: int) -> Any:
    """A window keeps its size at the ends of a row."""
    return (centre.clamp(reach, size - 1 - reach) - key).abs() <= reach


def tiled_neighbourhood(width: int, tile: int, reach: int) -> Function:
    """Pixels are stored tile after tile."""

    def place(index: Any) -> tuple[Any, Any]:
        number, inside = index // (tile * tile), index % (tile * tile)
        across = width // tile
        return number % across * tile + inside % tile, number // across * tile + inside // tile

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        (x, y), (key_x, key_y) = place(q), place(k)
        return _near(x, key_x, reach, width) & _near(y, key_y, reach, width)

    return mask


def morton_neighbourhood(width: int, reach: int) -> Function:
    """Pixels are stored along a Z-order curve."""

    def every_other_bit(code: Any) -> Any:
        code = code & 0x55555555
        for shift, kept in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF)):
            code = (code | (code >> shift)) & kept
        return code

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        rows = _near(every_other_bit(q), every_other_bit(k), reach, width)
        return rows & _near(every_other_bit(q >> 1), every_other_bit(k >> 1), reach, width)

    return mask


def sliding_tiles(canvas: tuple[int, ...], window: tuple[int, ...], tile: int) -> Function:
    """Tiles of an image or a video see the tiles around them; text behind them sees all."""
    pixels = math.prod(canvas) * tile

    def place(index: Any) -> list[Any]:
        number, found = index // tile, []
        for size in reversed(canvas):
            found.append(number % size)
            number = number // size
        return found[::-1]

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        seen = (q < pixels) & (k < pixels)
        for own, key, size, reach in zip(place(q), place(k), canvas, window, strict=True):
            seen = seen & _near(own, key, reach // 2, size)
        return seen | (q >= pixels) | (k >= pixels)

    return mask


def spatial_head(prompt: int, width: int, sink: int) -> Function:
    return lambda b, h, q, k: (k < prompt + sink) | (q < prompt) | (torch.abs(q - k) < width)


def temporal_head(prompt: int, frame: int, width: int) -> Function:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        near = torch.abs((q - prompt) % frame - (k - prompt) % frame) < width
        return (k < prompt) | (q < prompt) | near

    return mask


def cross_attention_to_images(device: str, keys: int) -> Function:
    """A query sees the images whose interval it is in. The key says the image."""
    intervals = torch.tensor([[0, 7], [1, 30], [7, 400]], dtype=torch.int32, device=device)
    images = (torch.arange(keys, device=device) * 3 // keys).int()

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        interval = intervals[images[k]]
        return (q >= interval[0]) & (q < interval[1])

    return mask


def in_groups(inner: Function, size: int) -> Function:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q // size == k // size) & inner(b, h, q % size, k % size)

    return mask


def in_documents(inner: Function, device: str, keys: int) -> Function:
    """A mask of positions within documents."""
    starts = torch.tensor([0, 9, 25, 40, 130, 200], device=device)
    ids = torch.bucketize(torch.arange(keys, device=device), starts, right=True) - 1

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        same = ids[q] == ids[k]
        return same & inner(b, h, q - starts[ids[q]], k - starts[ids[k]])

    return mask


def gym_masks(device: str = "cpu", keys: int = KEYS) -> dict[str, Function]:
    """The masks of attention-gym that `flex_functions` does not have."""
    return {
        "tiled natten": tiled_neighbourhood(20, 4, 2),
        "morton natten": morton_neighbourhood(32, 2),
        "sliding tiles": sliding_tiles((4, 3), (3, 1), 4),
        "sliding tiles of a video": sliding_tiles((2, 3, 3), (1, 3, 3), 2),
        "spatial head": spatial_head(5, 8, 6),
        "temporal head": temporal_head(5, 11, 3),
        "cross attention to images": cross_attention_to_images(device, keys),
        "groups": in_groups(causal, 12),
        "groups that see all": in_groups(noop_mask, 17),
        "documents with positions": in_documents(lambda b, h, q, k: q - k < 6, device, keys),
        "window and sink": and_masks(causal, lambda b, h, q, k: (q - k <= 7) | (k < 4)),
    }


def torch_masks(device: str = "cpu", keys: int = KEYS) -> dict[str, Function]:
    """Masks of torch's tests."""
    both_ways = torch.tensor([9, 21], device=device)
    used = torch.tensor([30, 45], device=device)
    of_heads = torch.arange(HEADS, device=device) % 2 == 0
    return {
        "both ways, then causal": lambda b, h, q, k: (q >= k) | (k < both_ways[b]),
        "padded": lambda b, h, q, k: (q < used[b]) & (k < used[b]),
        "one of two by head": lambda b, h, q, k: torch.where(of_heads[h], q >= k, q - k > -5),
        "heads that see nothing": lambda b, h, q, k: (h > 0) & (q >= k),
        "the last block is short": lambda b, h, q, k: k >= keys - 3,
        "inverse causal": lambda b, h, q, k: q <= k,
    }


def torch_scores(device: str = "cpu", keys: int = KEYS) -> dict[str, Function]:
    """Scores of torch's tests."""
    offset, of_all = _draw(HEADS).to(device), _draw(BATCH, HEADS, keys, keys, seed=2).to(device)
    lengths = torch.arange(1, BATCH + 1, device=device)
    one = torch.ones((), dtype=torch.int32, device=device)
    which = torch.tensor(1, device=device)
    starts = torch.tensor([0, 20, 37], device=device)
    ids = torch.bucketize(torch.arange(keys, device=device), starts, right=True) - 1
    odd = torch.tensor(-math.inf, device=device)
    order = torch.arange(keys, device=device).flip(0)
    return {
        "as it is": lambda s, b, h, q, k: s,
        "inverse causal score": lambda s, b, h, q, k: torch.where(q <= k, s, -math.inf),
        "distance and causal": lambda s, b, h, q, k: torch.where(q >= k, s + (q - k), -math.inf),
        "head offset": lambda s, b, h, q, k: s * offset[h],
        "silu": lambda s, b, h, q, k: F.silu(s),
        "scores of padding": lambda s, b, h, q, k: torch.where(s <= lengths[b], s, -math.inf),
        "a captured integer": lambda s, b, h, q, k: s + one,
        "nested positions": lambda s, b, h, q, k: torch.where(
            q - starts[ids[q]] >= k - starts[ids[k]], s, -math.inf
        ),
        "no odd keys": lambda s, b, h, q, k: torch.where(k % 2 == 0, s, odd),
        "bias of every place": lambda s, b, h, q, k: s + of_all[b, h, q, k],
        "bias of rows": lambda s, b, h, q, k: s + of_all[b][h][q][k] * of_all[0, h, k, q],
        "an index twice": lambda s, b, h, q, k: s + of_all[b, h, q, q] - of_all[0][0][h][h],
        "a captured index": lambda s, b, h, q, k: s + of_all[which, h, q, k],
        "an index from a tensor": lambda s, b, h, q, k: s + of_all[b, h, order[q], order[k]],
        "floor division": lambda s, b, h, q, k: s - torch.floor_divide(q, 1 + k),
        "two masks": lambda s, b, h, q, k: torch.where((q >= k) | (k < 3) & (h != 1), s, -1e9),
        "a gate of heads": lambda s, b, h, q, k: s * torch.sigmoid(offset[h].to(torch.float32)),
        "symmetric bias": lambda s, b, h, q, k: s + offset[torch.abs(q - k) % HEADS],
        "window of biases": lambda s, b, h, q, k: torch.where(
            (q - k).abs() <= 4, s + offset[(q - k).clamp(0, HEADS - 1)], s
        ),
    }
