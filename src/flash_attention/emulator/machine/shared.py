# SPDX-License-Identifier: Apache-2.0
"""Shared memory of all CTAs: addresses, data, and the checks of every access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator.machine.lanes import SHARED_BASE
from flash_attention.emulator.machine.shadow import Shadow
from flash_attention.emulator.machine.storage import CHUNK, Storage

if TYPE_CHECKING:
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.machine.machine import Machine

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_] | None


class SharedMemory(Shadow):
    """One flat array, CTA after CTA; it starts poisoned."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._counters = machine.counters
        self._limit = machine.shared_limit
        size = max(machine.num_ctas * machine.shared_stride, CHUNK)
        self.storage = Storage(size, poisoned=True)
        self.bytes = self.storage.bytes
        self.words = self.storage.words
        self.chunks = self.storage.chunks

    def flat(
        self, sel: Selection, addr: NDArray[Any], nbytes: int, mask: Mask, pc: int, what: str
    ) -> Ints:
        """Flat offsets of shared addresses; those that may not be accessed become harmless."""
        return self.resolve(sel, addr, nbytes, mask, pc, what)[0]

    def resolve(
        self, sel: Selection, addr: NDArray[Any], nbytes: int, mask: Mask, pc: int, what: str
    ) -> tuple[Ints, Mask]:
        """Flat offsets, and the lanes that may access theirs (None: all of them)."""
        address = addr.astype(np.int64)
        active = address if mask is None else address[mask]
        if active.size == 0:
            return sel.shared_base + SHARED_BASE, mask
        low, high = int(np.minimum.reduce(active)), int(np.maximum.reduce(active))
        if low < SHARED_BASE or high + nbytes > SHARED_BASE + self._limit:
            bad = (address < SHARED_BASE) | (address + nbytes > SHARED_BASE + self._limit)
            allowed = ~bad if mask is None else mask & ~bad
            bad = bad if mask is None else mask & bad
            first = int(address[bad.argmax()]) - SHARED_BASE
            detail = f"{what} of {nbytes} bytes at shared byte {first} of {self._limit}"
            self._findings.report("shared-out-of-bounds", detail, pc, sel, bad, address)
            mask = allowed
            active = address[mask]
        if int(np.bitwise_or.reduce(active)) & (nbytes - 1):
            bad = address % nbytes != 0
            bad = bad if mask is None else mask & bad
            detail = f"{what} of {nbytes} bytes at an address that is no multiple of {nbytes}"
            self._findings.report("shared-misaligned", detail, pc, sel, bad, address)
            address -= address % nbytes
        if mask is not None:
            address = np.where(mask, address, SHARED_BASE)
        return address + sel.shared_base, mask

    def load(
        self, sel: Selection, addr: NDArray[Any], size: int, n: int, mask: Mask, pc: int
    ) -> tuple[NDArray[Any], ...]:
        """`n` unsigned values of `size` bytes for every lane."""
        nbytes = size * n
        offsets, allowed = self.resolve(sel, addr, nbytes, mask, pc, "load")
        if self._checks:
            self.check_read(sel, offsets, nbytes, pc, allowed)
            self._counters.shared_access(pc, sel, addr, nbytes, mask)
        return self.storage.gather(offsets, size, n)

    def store(
        self,
        sel: Selection,
        addr: NDArray[Any],
        size: int,
        values: Sequence[NDArray[Any]],
        mask: Mask,
        pc: int,
    ) -> None:
        nbytes = size * len(values)
        offsets, allowed = self.resolve(sel, addr, nbytes, mask, pc, "store")
        if self._checks:
            self.check_write(sel, offsets, nbytes, pc, allowed)
            self._counters.shared_access(pc, sel, addr, nbytes, mask)
        self.storage.scatter(offsets, size, values, allowed)
