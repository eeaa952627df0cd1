# SPDX-License-Identifier: Apache-2.0
"""Updates of KV caches of every kind, for the kernel and for torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall, Rotary
from flash_attention.reference.judge import cu_seqlens

BATCH, NEW, HEADS, HEADS_K, QUERIES, POSITIONS = 3, 3, 4, 2, 5, 64
PAGE, PAGES, COLUMNS = 8, 14, 5  # of a table: sequences have room for 40 rows
COUNTS = (4, 3, 0)  # packed new rows
FAR = 10**6  # a page that no cache has
KINDS = (
    "rows",
    "pages",
    "index",
    "pad",
    "pages index",
    "pages pad",
    "index pad",
    "pages index pad",
)
"""What a cache is described by."""
LENGTHS: dict[str, tuple[int, ...] | int] = {
    "some": (7, 0, 20),
    "the same": 9,
    "one too many": (7, 38, 20),
    "a negative one": (-3, 5, 36),
    "none fits": (40, 39, 2**31 - 5),
}


def numbers(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def cache_call(kind: str, lengths: str = "some", **options: Any) -> CacheCall:
    """A call with random rows; `options` are those of `random_rows` and of `rotary`."""
    torch.manual_seed(5)
    turn = {name: options.pop(name) for name in ("interleaved", "one_position") if name in options}
    d, d_v, dtype = (options.pop(n, v) for n, v in (("d", 64), ("d_v", 64), ("dtype", None)))
    dtype = dtype or torch.bfloat16
    words = kind.split()
    entries, rows = (PAGES, PAGE) if "pages" in words else (5 if "index" in words else BATCH, 40)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    table = index = None
    if "pages" in words:  # the last row is of nobody, the last page of all is not shared
        table = torch.full((BATCH + ("index" in words), COLUMNS), FAR, dtype=torch.int32)
        table[:BATCH, : COLUMNS - 1] = torch.randperm(12, dtype=torch.int32).reshape(BATCH, 4)
        table[0, COLUMNS - 1] = 13
    if "index" in words:
        index = numbers(2, 0, 1) if table is not None else numbers(4, 0, 2)
    given = LENGTHS[lengths]
    call = CacheCall(
        *(random(BATCH, QUERIES, HEADS, d), random(entries, rows, HEADS_K, d)),
        random(entries, rows, HEADS_K, d_v),
        given if isinstance(given, int) else numbers(*given),
        BATCH,
        *(random(BATCH, NEW, HEADS_K, d), random(BATCH, NEW, HEADS_K, d_v), table, index),
        numbers(2, 0, 5) if "pad" in words else None,
        rotary(dtype, **turn) if turn else None,
    )
    return call._replace(**options)


def packed_call(kind: str, lengths: str = "some", **options: Any) -> CacheCall:
    """The same with packed new rows, `COUNTS` of each sequence. The first and the last one are no
    sequence's."""
    call = cache_call(kind, lengths, **options)
    assert call.k is not None
    assert call.v is not None
    starts = cu_seqlens(COUNTS) + 1
    return call._replace(k=call.k.flatten(0, 1), v=call.v.flatten(0, 1), cu_seqlens_k_new=starts)


def rotary(
    dtype: torch.dtype, dim: int = 32, *, interleaved: bool, one_position: bool = False
) -> Rotary:
    angle = torch.rand(POSITIONS, dim // 2) * 6
    return Rotary(angle.cos().to(dtype), angle.sin().to(dtype), interleaved, None, one_position)


def with_own_cache(call: CacheCall) -> CacheCall:
    """The call with copies of its caches."""
    return call._replace(k_cache=call.k_cache.clone(), v_cache=call.v_cache.clone())
