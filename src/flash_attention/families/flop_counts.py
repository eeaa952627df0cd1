# SPDX-License-Identifier: Apache-2.0
"""How much arithmetic attention is: one count for every family."""

from __future__ import annotations

from typing import Protocol


class _Tile(Protocol):
    @property
    def d_head(self) -> int: ...
    @property
    def B_c(self) -> int: ...


class FlopCounts:
    """Gives a config `attn_flop` and `total_flop`."""

    def attn_flop(self: _Tile, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """FLOP of the two products, as everyone counts them: 4 b h sq sk d."""
        seq_k = seq_q if seq_k is None else seq_k
        return 4 * batch * heads * seq_q * seq_k * self.d_head

    def total_flop(
        self: _Tile, batch: int, heads: int, seq_q: int, seq_k: int | None = None
    ) -> int:
        """All floating-point work of the tiles: the products, the softmax, the rescaling of O.

        A score costs 5 (scale, subtract, exponential, maximum, sum); a row costs d_head + 3 a key
        block (O and the sum rescaled, the factor itself) and d_head once to normalise.
        """
        seq_k = seq_q if seq_k is None else seq_k
        rows = batch * heads * seq_q
        products = FlopCounts.attn_flop(self, batch, heads, seq_q, seq_k)
        softmax = 5 * rows * seq_k
        rescale = rows * (-(-seq_k // self.B_c)) * (self.d_head + 3)
        return products + softmax + rescale + rows * self.d_head
