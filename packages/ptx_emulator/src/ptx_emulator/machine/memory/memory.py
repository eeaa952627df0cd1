# SPDX-License-Identifier: Apache-2.0
"""What all memories have in common: which accesses may be made, and where they go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Access, Bools, Ints, Mask
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.launch.findings import Findings
from ptx_emulator.machine.storage.owners import Owners
from ptx_emulator.machine.storage.storage import Storage
from ptx_emulator.native import Native


class Memory(ABC):
    """Loads and stores: resolved, counted and checked by the memory they go to."""

    space: str
    base: int  # the address of its first byte
    owners: Owners = MappingProxyType({})  # the arrays that instructions have to stay inside of
    _findings: Findings
    _native: Native | None = None

    @property
    @abstractmethod
    def storage(self) -> Storage: ...

    @abstractmethod
    def read(self, access: Access) -> Access:
        """Count and check a read; returns it resolved."""

    @abstractmethod
    def write(self, access: Access) -> Access:
        """Count, check and record a write; returns it resolved."""

    @abstractmethod
    def covers(self, begin: int, end: int) -> bool:
        """Whether all bytes from `begin` to `end` may surely be accessed."""

    @abstractmethod
    def inside(self, offsets: Ints, nbytes: int) -> Bools:
        """Which accesses touch only bytes that may be accessed."""

    @abstractmethod
    def outside(self, offset: int) -> str:
        """Where an access lies that may not be made."""

    def starts(self, sel: Selection) -> tuple[Ints | None, int]:
        """Where the memory of each lane starts in the storage, as places and one more number."""
        return None, 0

    def flat(self, sel: Selection, offsets: Ints) -> Ints:
        """Places in the storage of the offsets that lanes see."""
        places, start = self.starts(sel)
        return offsets + start if places is None else offsets + (places + start)

    def resolve(self, access: Access) -> Access:
        """The same access at places in the storage, by the lanes that may make it."""
        return self._resolved(access) or self._inspected(access)

    def _resolved(self, access: Access) -> Access | None:
        """The access, if nothing is wrong with it as far as native code can tell."""
        if self._native is None:
            return None
        sel, where, nbytes, mask, pc, what, align = access
        offsets: Ints = np.empty(sel.count, np.int64)
        bounds = self._native.numbers
        lanes = self._native.offsets(where, mask, self.base, *self.starts(sel), offsets, bounds)
        if lanes < 0 or (lanes and not self._fits(bounds, nbytes, align or nbytes, (pc,))):
            return None
        return Access(sel, offsets, nbytes, mask, pc, what, align)

    def _fits(self, bounds: Ints, nbytes: int, align: int, pcs: Sequence[int]) -> bool:
        """Whether accesses of instructions, with offsets in bounds, are aligned and in place."""
        low, high, bits, _ = bounds.tolist()
        for pc in pcs:
            owner = self.owners.get(pc)
            if owner is not None and (low < owner.begin or high + nbytes > owner.end):
                return False
        return not bits & (align - 1) and self.covers(low, high + nbytes)

    def _inspected(self, access: Access) -> Access:
        """The access, with a look at all that may be wrong with it."""
        sel, pc, nbytes, mask = access.sel, access.pc, access.nbytes, access.mask
        align = access.align or nbytes
        offsets = access.where.astype(np.int64) - self.base
        active = offsets if mask is None else offsets[mask]
        if active.size == 0:
            return access._replace(where=self.flat(sel, np.zeros_like(offsets)))
        what = f"{access.what} of {nbytes} bytes"
        low, high = int(np.minimum.reduce(active)), int(np.maximum.reduce(active))
        if not self.covers(low, high + nbytes):
            inside = self.inside(offsets, nbytes)
            bad = ~inside if mask is None else mask & ~inside
            if bad.any():
                detail = f"{what} {self.outside(int(offsets[bad.argmax()]))}"
                kind = f"{self.space}-out-of-bounds"
                self._findings.report(kind, detail, pc, sel, bad, offsets + self.base)
                mask = inside if mask is None else mask & inside
                active = offsets[mask]
        owner = self.owners.get(pc)
        if owner is not None and (low < owner.begin or high + nbytes > owner.end):
            stray = (offsets < owner.begin) | (offsets + nbytes > owner.end)
            detail = f"{what} outside of {owner.name}, where the address comes from"
            bad = stray if mask is None else mask & stray
            self._findings.report("stray-address", detail, pc, sel, bad, offsets + self.base)
        if int(np.bitwise_or.reduce(active)) & (align - 1):
            bad = offsets % align != 0
            bad = bad if mask is None else mask & bad
            detail = f"{what} at an address that is no multiple of {align}"
            kind = f"{self.space}-misaligned"
            self._findings.report(kind, detail, pc, sel, bad, offsets + self.base)
            offsets -= offsets % align
        if mask is not None:
            offsets = np.where(mask, offsets, 0)
        return access._replace(where=self.flat(sel, offsets), mask=mask)

    def load(
        self, sel: Selection, addr: NDArray[Any], size: int, n: int, mask: Mask, pc: int
    ) -> tuple[NDArray[Any], ...]:
        """`n` unsigned values of `size` bytes for every lane."""
        access = self.read(Access(sel, addr, size * n, mask, pc, "load"))
        return self.storage.gather(access.where, size, n)

    def store(
        self,
        sel: Selection,
        addr: NDArray[Any],
        size: int,
        values: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> None:
        access = self.write(Access(sel, addr, size * len(values), mask, pc, "store"))
        self.storage.scatter(access.where, size, values, access.mask)
