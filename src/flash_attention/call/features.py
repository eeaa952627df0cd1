# SPDX-License-Identifier: Apache-2.0
"""Features: what a problem asks of a kernel's code, beside what the config chose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MaskKind(Enum):
    """Which keys a query sees; the value is the name of the C++ type."""

    FULL = "Full"
    CAUSAL = "Causal"
    WINDOW = "Window"


@dataclass(frozen=True)
class Features:
    """What is asked. A family resolves it: its own subclass adds what follows for its kernels."""

    mask: MaskKind = MaskKind.FULL
    softcap: bool = False
    per_batch: bool = False  # the sequences of a batch have lengths of their own
    page_keys: int = 0  # rows of a page that a table names; 0: keys are contiguous
    sinks: bool = False  # every row sees one more score, that of its head

    @property
    def dense(self) -> bool:
        """Whether full or causal attention is all that is asked."""
        others = (self.softcap, self.per_batch, self.page_keys, self.sinks)
        return self.mask is not MaskKind.WINDOW and not any(others)

    def words(self) -> list[str]:
        """What sets these features apart from plain attention."""
        words = {
            self.mask.name.lower(): self.mask is not MaskKind.FULL,
            "softcap": self.softcap,
            "per_batch": self.per_batch,
            f"page_{self.page_keys}": self.page_keys > 0,
            "sinks": self.sinks,
        }
        return [word for word, on in words.items() if on]

    def in_words(self) -> list[str]:
        """What is asked, as the caller would say it."""
        words = {
            "causal=True": self.mask is MaskKind.CAUSAL,
            "a window": self.mask is MaskKind.WINDOW,
            "softcap": self.softcap,
            "a length of its own for every sequence": self.per_batch,
            "block_table": self.page_keys > 0,
        }
        return [word for word, on in words.items() if on]

    @property
    def suffix(self) -> str:
        """What the name of a kernel ends with: "_causal_softcap"; of plain attention, nothing."""
        return "".join(f"_{word}" for word in self.words())


PLAIN = Features()
CAUSAL = Features(MaskKind.CAUSAL)
