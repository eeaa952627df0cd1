# SPDX-License-Identifier: Apache-2.0
"""Accesses at generic addresses: each lane's goes to the memory that its address lies in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Mask
from ptx_emulator.machine.clusters import SHARED_END
from ptx_emulator.machine.lanes import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    Selection,
)
from ptx_emulator.machine.memory.global_access import GlobalAccess
from ptx_emulator.machine.memory.private import PrivateMemory
from ptx_emulator.machine.memory.shared import SharedMemory

Array = NDArray[Any]


class GenericAccess:
    """Loads, stores and atomics whose instruction does not say which memory it means."""

    def __init__(
        self,
        shared: SharedMemory,
        local: PrivateMemory,
        parameters: PrivateMemory,
        global_access: GlobalAccess,
    ) -> None:
        self._global = global_access
        self._windows = (
            (shared, SHARED_BASE, SHARED_END),
            (local, LOCAL_BASE, PARAM_BASE),
            (parameters, PARAM_BASE, GLOBAL_BASE),
        )

    def load(
        self, sel: Selection, addr: Array, size: int, n: int, mask: Mask, pc: int
    ) -> tuple[Array, ...]:
        found: tuple[Array, ...] = ()
        for memory, part in self._by_memory(addr, mask):
            loaded = memory.load(sel, addr, size, n, part, pc)
            if part is mask or part is None:
                return tuple(loaded)
            found = found or tuple(np.zeros_like(values) for values in loaded)
            found = tuple(np.where(part, new, old) for new, old in zip(loaded, found, strict=True))
        return found

    def store(
        self, sel: Selection, addr: Array, size: int, values: Sequence[Array], mask: Mask, pc: int
    ) -> None:
        for memory, part in self._by_memory(addr, mask):
            memory.store(sel, addr, size, values, part, pc)

    def atomic(
        self,
        sel: Selection,
        op: str,
        type: str,
        addr: Array,
        value: Array,
        compare: Array | None,
        mask: Mask,
        pc: int,
        ordered: bool = True,
    ) -> Array:
        before = np.zeros(sel.count, value.dtype)
        for memory, part in self._by_memory(addr, mask):
            found = memory.atomic(sel, op, type, addr, value, compare, part, pc, ordered)
            before = found if part is None else np.where(part, found, before)
        return before

    def reduce(
        self,
        sel: Selection,
        op: str,
        type: str,
        addr: Array,
        values: Sequence[Array],
        mask: Mask,
        pc: int,
    ) -> None:
        for memory, part in self._by_memory(addr, mask):
            memory.reduce(sel, op, type, addr, values, part, pc)

    def _by_memory(self, addr: Array, mask: Mask) -> Iterator[tuple[Any, Mask]]:
        """The memories that the lanes of `mask` mean, with the lanes that mean each."""
        active = addr if mask is None else addr[mask]
        rest = np.ones(len(addr), bool) if mask is None else mask
        if active.size and int(active.min()) < GLOBAL_BASE:
            for memory, begin, end in self._windows:
                there = rest & (addr >= begin) & (addr < end)
                if there.any():
                    yield memory, there
                    rest = rest & ~there
            if rest.any():
                yield self._global, rest
            return
        yield self._global, mask
