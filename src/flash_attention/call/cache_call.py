# SPDX-License-Identifier: Apache-2.0
"""CacheCall: what is to be stored in a KV cache before attention, and how its keys are found."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """A rotary embedding of the new keys and of q.

    A new key has the position of its row in the cache, or counts from `seqlens`. Queries have the
    same positions as the new keys, or with `one_position` all that of the first.
    """

    cos: Tensor  # (positions, rotary_dim / 2)
    sin: Tensor
    interleaved: bool  # columns 2 i and 2 i + 1 turn together, else i and i + rotary_dim / 2
    seqlens: Tensor | None  # int32 (batch,)
    one_position: bool

    @property
    def dim(self) -> int:
        """The number of columns that are rotated."""
        return 2 * self.cos.shape[1]


class CacheCall(NamedTuple):
    """A KV cache, its sequences, and what to store in it.

    The cache is (entries, entry_rows, heads_k, d). A sequence has the entries in its row of
    `table`, or one entry. `batch_index` names the row of the table, or the entry, of each sequence;
    otherwise sequence i has the i-th. The first `leftpad` rows of a sequence are no keys.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    lengths: Tensor | int  # rows in use of each sequence, int32 (batch,), or the same for all
    batch: int
    k: Tensor | None = None  # new rows, (batch, new_rows, heads_k, d), or packed, (n, heads_k, d)
    v: Tensor | None = None
    table: Tensor | None = None  # int32
    batch_index: Tensor | None = None  # int32 (batch,)
    leftpad: Tensor | None = None  # int32 (batch,)
    rotary: Rotary | None = None
    cu_seqlens_q: Tensor | None = None  # of a packed q
    max_seqlen_q: int | None = None
    cu_seqlens_k_new: Tensor | None = None  # of packed new rows

    @property
    def new_rows(self) -> int:
        """The number of new keys of each sequence; of packed ones, that of all sequences."""
        return 0 if self.k is None else self.k.shape[-3]

    @property
    def max_rows(self) -> int:
        """The largest number of rows of a sequence."""
        rows = self.k_cache.shape[1]
        return rows if self.table is None else rows * self.table.shape[1]

    @property
    def moves(self) -> bool:
        """Whether the keys of a sequence are not the first rows of the same entry as its number."""
        return not (self.table is self.batch_index is None)

    @property
    def own_page_rows(self) -> int:
        """The rows of the pages of a table that has to be made, or 0 if the given one suffices.

        Behind left padding the keys of a sequence start anywhere in a page, so that every key is a
        page of its own.
        """
        if self.leftpad is not None and self.moves:
            return 1
        return 0 if self.table is None or self.batch_index is None else self.k_cache.shape[1]

    @property
    def needs_update(self) -> bool:
        """Whether something is to be stored or computed before attention."""
        return self.k is not None or self.leftpad is not None or self.own_page_rows > 0

    def empty_keys(self) -> CachedKeys:
        """Allocate what an update computes."""
        device, rows = self.k_cache.device, self.own_page_rows
        starts = table = None
        if self.leftpad is not None and not rows:
            starts = torch.empty(self.batch + 1, dtype=torch.int32, device=device)
        if rows:
            size = (self.batch, -(-self.max_rows // max(rows, 1)))
            table = torch.empty(size, dtype=torch.int32, device=device)
        used = torch.empty(self.batch, dtype=torch.int32, device=device)
        q = (
            self.q
            if self.rotary is None
            else torch.empty(self.q.shape, dtype=self.q.dtype, device=device)
        )
        return CachedKeys(q, used, starts, table)


class CachedKeys(NamedTuple):
    """The queries, and where the keys of each sequence are, after an update."""

    q: Tensor  # rotated, with a rotary embedding
    used: Tensor  # int32 (batch,), keys of each sequence
    starts: Tensor | None  # int32 (batch + 1,), the first key of each among all rows of the cache
    table: Tensor | None  # int32 (batch, n), pages of `own_page_rows` rows
