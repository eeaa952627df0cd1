# SPDX-License-Identifier: Apache-2.0
"""What one block of scores is to a CTA: the arithmetic and the bytes that its config implies."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of


@dataclass(frozen=True)
class KeyBlock:
    """A block of keys and values, for all query rows of a CTA. In a backward kernel it is a block
    of queries, for all keys of a CTA."""

    rows: int  # of queries
    keys: int
    d_head: int
    itemsize: int
    warps: int  # that share the products; a producer's do not
    products: int  # in the main loop
    value_columns: int  # of the product with V
    loaded_rows: int  # of both tensors that a block is of
    loaded_columns: int

    @classmethod
    def of(cls, config: KernelConfig) -> KeyBlock:
        sizes = (config.B_r, config.B_c, config.d_head, config.input_dtype.itemsize)
        products, warps = config.loop_products
        backward = family_of(config).pass_ is Pass.BACKWARD
        loaded = config.B_r if backward else config.B_c
        return cls(*(*sizes, warps, products, config.value_columns, loaded, config.loaded_columns))

    @property
    def flop(self) -> int:
        """Of the products in the main loop."""
        columns = (self.products - 1) * self.d_head + self.value_columns
        return 2 * self.rows * self.keys * columns

    @property
    def loaded_bytes(self) -> int:
        """Of K and V, or Q and dO in a backward kernel, loaded once by the CTA."""
        return self.loaded_rows * self.loaded_columns * self.itemsize

    @property
    def flop_per_byte(self) -> float:
        """What is done with a byte that is loaded."""
        return self.flop / self.loaded_bytes

    @property
    def exponentials(self) -> int:
        """One a score."""
        return self.rows * self.keys
