# SPDX-License-Identifier: Apache-2.0
"""Whether the entries of a KV cache that hold the keys of its sequences exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from flash_attention.call.lengths import allowed_of
from flash_attention.errors import UnsupportedError


def check_not_empty(cache: Tensor, table: Tensor | None, new: Sequence[int]) -> None:
    """Check that a cache with new keys has entries. No value is read."""
    if len(cache) == 0 and any(new):
        are = "entries" if table is None else "pages"
        raise UnsupportedError(
            f"k_cache has shape {tuple(cache.shape)}, no {are}, and there are {max(new)} new keys;"
            f" pass a cache with {are}"
        )


@dataclass(frozen=True)
class Entries:
    """The entries of a cache, as a table and an index of flash-attn name them."""

    cache: Tensor  # (entries, rows, heads_k, d)
    table: Tensor | None
    index: Tensor | None
    table_name: str  # in the caller's function

    def check(self, first: Sequence[int], keys: Sequence[int]) -> None:
        """Check the entries from the first key of each sequence to the last, by their values."""
        table = None if self.table is None else self.table.tolist()
        index = None if self.index is None else self.index.tolist()
        for sequence, (start, end) in enumerate(zip(first, keys, strict=True)):
            if start >= end:
                continue
            place, of = sequence, f"and sequence {sequence} has {end} keys"
            if index is not None:
                place = index[sequence]
                self._check_place(f"cache_batch_idx[{sequence}] is {place}, {of}", place)
            if table is not None:
                self._check_pages(place, table[place], start, end, of)

    def _check_place(self, said: str, place: int) -> None:
        """Check what the index names: a row of the table, or an entry."""
        count, allowed = len(self.cache), allowed_of("the cache", len(self.cache), "entries")
        if self.table is not None:
            count, allowed = len(self.table), allowed_of(self.table_name, len(self.table), "rows")
        if not 0 <= place < count:
            raise UnsupportedError(f"{said}; {allowed}")

    def _check_pages(self, row: int, pages: list[int], start: int, end: int, of: str) -> None:
        """Check the pages of a sequence."""
        count, page_rows = self.cache.shape[:2]
        for column in range(start // page_rows, -(-end // page_rows)):
            if not 0 <= pages[column] < count:
                raise UnsupportedError(
                    f"{self.table_name}[{row}, {column}] is {pages[column]}, {of};"
                    f" {allowed_of('the cache', count, 'pages')}"
                )
