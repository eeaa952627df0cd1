# SPDX-License-Identifier: Apache-2.0
"""Arrays that share bytes, such as one that is passed twice: they are one memory on the device."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.storage.global_memory import GlobalMemory

Named = tuple[str, NDArray[Any]]


class Device:
    """The memory of the device, and where in it arrays of the host lie that overlap."""

    def __init__(self, memory: GlobalMemory, arrays: Iterable[Named]) -> None:
        self.memory = memory
        self._starts: dict[int, int] = {}  # by the addresses on the host
        for several in _overlapping([named for named in arrays if named[1].nbytes]):
            self._place_together(several)

    def address(self, array: NDArray[Any], name: str) -> int:
        """Where an array is: with those that it shares bytes with, or in memory of its own."""
        known = self._starts.get(start_of(array)) if self._starts else None
        return self.memory.alloc(array, name=name) if known is None else known

    def _place_together(self, several: list[Named]) -> None:
        first = min(start_of(array) for _, array in several)
        end = max(start_of(array) + array.nbytes for _, array in several)
        whole = np.zeros(end - first, np.uint8)
        for _, array in several:
            offset = start_of(array) - first
            whole[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        address = self.memory.alloc(whole, name=" = ".join(name for name, _ in several))
        for _, array in several:
            self._starts[start_of(array)] = address + start_of(array) - first


def start_of(array: NDArray[Any]) -> int:
    """The address of the first element on the host."""
    return int(array.__array_interface__["data"][0])


def _overlapping(arrays: list[Named]) -> list[list[Named]]:
    """The groups of two arrays and more that overlap."""
    groups: list[list[Named]] = []
    end = 0
    in_order = sorted(((start_of(named[1]), named) for named in arrays), key=itemgetter(0))
    for start, named in in_order:
        if start >= end:
            groups.append([])
        groups[-1].append(named)
        end = max(end, start + named[1].nbytes)
    return [group for group in groups if len(group) > 1]
