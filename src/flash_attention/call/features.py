# SPDX-License-Identifier: Apache-2.0
"""Features: what a problem requires of the kernel's code, besides the config."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which imports torch
    from flash_attention.program.nodes import Program


class MaskKind(Enum):
    """Which keys a query sees. The value is the name of the C++ type."""

    FULL = "Full"
    CAUSAL = "Causal"
    WINDOW = "Window"


@dataclass(frozen=True)
class Features:
    """The required features. A family resolves them into a subclass with details of its kernels."""

    mask: MaskKind = MaskKind.FULL
    softcap: bool = False
    per_batch: bool = False  # the sequences of a batch differ in length
    page_keys: int = 0  # keys per page of a paged KV cache; 0 if it is not paged
    sinks: bool = False  # a logit per head is added to the softmax denominator
    block_descales: bool = False  # blocks of keys have descale factors
    dropout: bool = False  # weights are dropped at random
    program: Program | None = None  # a user's score and mask functions change scores
    max_score: bool = False  # the largest score of every head is returned
    least_queries: int = 0  # sequences with fewer are left to another kernel
    most_queries: int = 0  # sequences with more are, unless it is 0

    @property
    def dense(self) -> bool:
        """Whether the only feature is a causal mask, or there is none."""
        others = (self.softcap, self.per_batch, self.page_keys, self.sinks, self.block_descales)
        more = self.dropout or self.max_score or self.program is not None
        return self.mask is not MaskKind.WINDOW and not (any(others) or more)

    def queries_of(self, rows: int) -> int:
        """Count the queries of a tile with `rows` rows."""
        return rows

    def words(self) -> list[str]:
        """Return short names of the features that differ from plain attention."""
        words = {
            self.mask.name.lower(): self.mask is not MaskKind.FULL,
            "softcap": self.softcap,
            "per_batch": self.per_batch,
            f"page_{self.page_keys}": self.page_keys > 0,
            "sinks": self.sinks,
            "block_descales": self.block_descales,
            "dropout": self.dropout,
            "max_score": self.max_score,
            f"from_{self.least_queries}": self.least_queries > 0,
            f"upto_{self.most_queries}": self.most_queries > 0,
        }
        found = [word for word, on in words.items() if on]
        return found if self.program is None else [*found, f"function_{self.program.digest}"]

    def in_words(self) -> list[str]:
        """Describe the features in the caller's words."""
        words = {
            "causal=True": self.mask is MaskKind.CAUSAL,
            "a window": self.mask is MaskKind.WINDOW,
            "softcap": self.softcap,
            "a length of its own for every sequence": self.per_batch,
            "block_table": self.page_keys > 0,
            "descale factors for blocks of keys": self.block_descales,
            "dropout": self.dropout,
            "a score or mask function": self.program is not None,
            "return_max": self.max_score,
        }
        return [word for word, on in words.items() if on]

    @property
    def suffix(self) -> str:
        """The end of the kernel's name, such as "_causal_softcap". Empty for plain attention."""
        return "".join(f"_{word}" for word in self.words())


PLAIN = Features()
CAUSAL = Features(MaskKind.CAUSAL)
