# SPDX-License-Identifier: Apache-2.0
"""What one key block is to a CTA: the arithmetic and the bytes that its config implies."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.families.config import KernelConfig


@dataclass(frozen=True)
class KeyBlock:
    """A block of keys and values, for all query rows of a CTA."""

    rows: int  # of queries
    keys: int
    d_head: int
    itemsize: int
    warps: int  # that compute; a producer's do not

    @classmethod
    def of(cls, config: KernelConfig) -> KeyBlock:
        sizes = (config.B_r, config.B_c, config.d_head, config.dtype.itemsize)
        return cls(*sizes, config.computing_warps)

    @property
    def flop(self) -> int:
        """Of the two products."""
        return 4 * self.rows * self.keys * self.d_head

    @property
    def kv_bytes(self) -> int:
        """Of K and V, loaded once by the CTA."""
        return 2 * self.keys * self.d_head * self.itemsize

    @property
    def flop_per_byte(self) -> float:
        """What is done with a byte that is loaded."""
        return self.flop / self.kv_bytes

    @property
    def exponentials(self) -> int:
        """One a score."""
        return self.rows * self.keys
