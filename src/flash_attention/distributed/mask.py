# SPDX-License-Identifier: Apache-2.0
"""Mask: which keys of its document a query sees, by the distance between the two."""

from __future__ import annotations

from typing import NamedTuple

from flash_attention.call.call import Window
from flash_attention.distributed.spans import Span


class Mask(NamedTuple):
    """How many keys a query sees before itself and after itself. None means no limit."""

    left: int | None = None
    right: int | None = None

    @classmethod
    def of(cls, causal: bool, window: Window | None) -> Mask:
        """The mask of the options of `attention`, where queries and keys have equal lengths."""
        left, right = (
            None if side is None or side == -1 else int(side) for side in window or (None, None)
        )
        return cls(left, 0 if causal else right)

    def keys_of(self, queries: Span, document: Span) -> Span:
        """The keys of a document that some of its queries see."""
        start = document.start if self.left is None else queries.start - self.left
        end = document.end if self.right is None else queries.end + self.right
        return Span(start, end).within(document)

    def queries_of(self, keys: Span, document: Span) -> Span:
        """The queries of a document that see some of its keys."""
        return Mask(self.right, self.left).keys_of(keys, document)

    def aligned(self, queries: Span, keys: Span) -> Mask:
        """The same mask between a part of the queries and a part of the keys, aligned at their
        ends, as `attention` aligns them. A side that hides nothing has no limit."""
        shift = queries.end - keys.end
        if shift == 0:
            return self
        left = None if self.left is None else self.left - shift
        right = None if self.right is None else self.right + shift
        if left is not None and left >= keys.rows - 1:
            left = None
        if right is not None and right >= queries.rows - 1:
            right = None
        return Mask(left, right)

    def area(self, rows: int, length: int) -> int:
        """How many keys the first `rows` queries of a document see, all together."""
        right = length if self.right is None else min(self.right, length)
        left = length if self.left is None else min(self.left, length)
        free = min(max(length - right, 0), rows)  # queries whose keys end before the document does
        last = free * (free - 1) // 2 + free * right + (rows - free) * (length - 1)
        cut_off = max(rows - 1 - left, 0)
        return last - cut_off * (cut_off + 1) // 2 + rows
