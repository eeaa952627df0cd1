# SPDX-License-Identifier: Apache-2.0
"""A cache of keys and values as flash-attn describes it, in the terms of `attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flash_attention.call.call import Keywords
from flash_attention.errors import UnsupportedError


@dataclass(frozen=True)
class Cache:
    """Keys and values in rows of batch entries, or in pages that a table names.

    A cache whose entries are reordered is one of pages: each entry is a page.
    """

    k: Tensor
    v: Tensor
    table: Tensor | None
    leftpad: Tensor | None  # rows of each entry before its first key

    @classmethod
    def of(
        cls,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor | None,
        cache_batch_idx: Tensor | None,
        cache_leftpad: Tensor | None,
    ) -> Cache:
        """The cache that these describe together."""
        given = {
            "block_table": block_table,
            "cache_batch_idx": cache_batch_idx,
            "cache_leftpad": cache_leftpad,
        }
        names = [name for name, tensor in given.items() if tensor is not None]
        if len(names) > 1:
            raise UnsupportedError(
                f"{' and '.join(names)} are given, and a cache has pages, or moved entries, or"
                " entries that start late, no two of them; leave all but one out"
            )
        table = block_table
        if cache_batch_idx is not None:
            _check_numbers("cache_batch_idx", cache_batch_idx)
            table = cache_batch_idx[:, None]
        if cache_leftpad is not None:
            _check_numbers("cache_leftpad", cache_leftpad)
            for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
                _check_entries_adjoin(name, tensor)
        return cls(k_cache, v_cache, table, cache_leftpad)

    @property
    def max_keys(self) -> int:
        """Keys of the longest entry there may be."""
        rows = self.k.shape[1]
        return rows if self.table is None else rows * self.table.shape[1]

    def append(self, k: Tensor | None, v: Tensor | None, lengths: Tensor | None) -> Tensor:
        """Store new rows behind those in use; the numbers of rows in use then."""
        if k is None or v is None or lengths is None:
            names = {"k": k, "v": v, "cache_seqlens": lengths}
            missing = ", ".join(name for name, value in names.items() if value is None)
            raise UnsupportedError(
                f"{missing} is missing; to store new keys and values in a cache pass k, v and"
                " cache_seqlens together"
            )
        for name, new, cache in (("k", k, self.k), ("v", v, self.v)):
            _check_new(name, new, cache, k)
        batch, new_rows = k.shape[:2]
        device = self.k.device
        entries = torch.arange(batch, device=device)[:, None]
        rows = lengths.long()[:, None] + torch.arange(new_rows, device=device)
        if self.table is not None:
            page_size = self.k.shape[1]
            entries, rows = self.table.long()[entries, rows // page_size], rows % page_size
        self.k[entries, rows] = k
        self.v[entries, rows] = v
        return lengths + new_rows

    def described(self, options: Keywords, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """k and v as `attention` takes them; how they are to be read goes into `options`."""
        if self.leftpad is not None:
            return self._packed(options, self.leftpad, lengths)
        if self.table is not None and lengths is None:
            lengths = torch.full_like(self.table[:, 0], self.max_keys)
        options["seqused_k"], options["block_table"] = lengths, self.table
        return self.k, self.v

    def _packed(
        self, options: Keywords, leftpad: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """All rows one after the other; an entry reaches from its first key to the next one's."""
        batch, rows = self.k.shape[:2]
        starts = torch.arange(batch + 1, dtype=torch.int32, device=leftpad.device) * rows
        starts[:-1] += leftpad
        options["cu_seqlens_k"], options["max_seqlen_k"] = starts, 2 * rows
        options["seqused_k"] = (rows if lengths is None else lengths) - leftpad
        return self.k.flatten(0, 1), self.v.flatten(0, 1)


def _check_numbers(name: str, tensor: Tensor) -> None:
    if tensor.ndim != 1 or tensor.dtype != torch.int32:
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and is {tensor.dtype}; pass one number for"
            " each entry of q, (batch,), torch.int32"
        )


def _check_entries_adjoin(name: str, cache: Tensor) -> None:
    """Rows of all entries are one apart throughout, so that they need not be copied."""
    batch, rows = cache.shape[:2]
    if batch > 1 and cache.stride(0) != rows * cache.stride(1):
        raise UnsupportedError(
            f"cache_leftpad is given, and the entries of {name} lie {cache.stride(0)} elements"
            f" apart, their {rows} rows take {rows * cache.stride(1)}; pass a cache without gaps,"
            f" {name}.contiguous()"
        )


def _check_new(name: str, new: Tensor, cache: Tensor, k: Tensor) -> None:
    """New rows have the heads, the columns and the dtype of the cache, v as many as k."""
    wanted = (*k.shape[:2], *cache.shape[2:])
    if tuple(new.shape) != wanted or new.dtype != cache.dtype:
        raise UnsupportedError(
            f"{name} has shape {tuple(new.shape)} and is {new.dtype}; to be stored in"
            f" {name}_cache it must be (batch, seq_new, heads_k, d) = {wanted}, {cache.dtype}"
        )
