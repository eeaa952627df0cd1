# SPDX-License-Identifier: Apache-2.0
"""What stores change: threads that store the same, or what is there already, do not race.

Threads of several CTAs may store the same mark: one value that all threads of the instruction
store. The same rows of results in two CTAs are a mistake of their tiles, though.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Bools, Ints
from ptx_emulator.machine.storage.storage import Storage


class Values(NamedTuple):
    """What the lanes of an access store, word by word."""

    words: Sequence[NDArray[Any]]
    storage: Storage

    def unchanged(self, access: Access, lanes: Ints) -> Bools:
        """Which lanes store what is there already."""
        size = self.words[0].dtype.itemsize
        there = self.storage.gather(access.where[lanes], size, len(self.words))
        pairs = zip(self.words, there, strict=True)
        same: Bools = np.logical_and.reduce([mine[lanes] == old for mine, old in pairs])
        return same

    def is_mark(self, lanes: Ints) -> bool:
        """Whether all lanes store one value."""
        return all(bool((word[lanes] == word[lanes[:1]]).all()) for word in self.words)

    def agreed(self, access: Access, lanes: Ints) -> Bools:
        """Which lanes store the same as all that meet them."""
        where = access.where[lanes]
        order = np.argsort(where, kind="stable")
        first = lanes[order[np.searchsorted(where[order], where)]]
        same = np.logical_and.reduce([word[lanes] == word[first] for word in self.words])
        agreed: Bools = ~np.isin(where, where[~same])
        return agreed
