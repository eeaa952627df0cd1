# SPDX-License-Identifier: Apache-2.0
"""Shared memory of all CTAs: addresses, data, and the checks of every access."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flash_attention.emulator.machine.access import Access, Bools, Ints, Memory
from flash_attention.emulator.machine.engine_shadow import EngineShadow
from flash_attention.emulator.machine.lanes import SHARED_BASE
from flash_attention.emulator.machine.storage import CHUNK, Storage

if TYPE_CHECKING:
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.machine.machine import Machine


class SharedMemory(EngineShadow, Memory):
    """One flat array, CTA after CTA; it starts poisoned."""

    space = "shared"
    base = SHARED_BASE

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._counters = machine.counters
        self._limit = machine.shared_limit
        size = max(machine.num_ctas * machine.shared_stride, CHUNK)
        self._storage = Storage(size, poisoned=True)
        self.bytes = self.storage.bytes
        self.words = self.storage.words
        self.chunks = self.storage.chunks

    @property
    def storage(self) -> Storage:
        return self._storage

    def covers(self, begin: int, end: int) -> bool:
        return begin >= 0 and end <= self._limit

    def inside(self, offsets: Ints, nbytes: int) -> Bools:
        return (offsets >= 0) & (offsets + nbytes <= self._limit)

    def outside(self, offset: int) -> str:
        return f"at shared byte {offset} of {self._limit}"

    def flat(self, sel: Selection, offsets: Ints) -> Ints:
        return offsets + (sel.shared_base + SHARED_BASE)

    def read(self, access: Access, collective: bool = False) -> Access:
        resolved = self.resolve(access)
        if self._checks:
            self.check_read(resolved, collective)
            self._counters.shared_access(access)
        return resolved

    def write(
        self,
        access: Access,
        collective: bool = False,
        agent: Ints | None = None,
        epoch: Ints | None = None,
    ) -> Access:
        resolved = self.resolve(access)
        if self._checks:
            self.check_write(resolved, collective, agent, epoch)
            self._counters.shared_access(access)
        return resolved
