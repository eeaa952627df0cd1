# SPDX-License-Identifier: Apache-2.0
"""Memory that no other thread sees: local variables, and the parameters of the kernel."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ptx_emulator.machine.access import Access, Bools, Ints
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.machine.launch.launch import Launch
from ptx_emulator.machine.memory.memory import Memory
from ptx_emulator.machine.storage.storage import CHUNK, Storage


class PrivateMemory(Memory):
    """`size` bytes from the address `base` on: of every thread, or the same of all of them."""

    def __init__(
        self, launch: Launch, space: str, base: int, size: int, of_all: bytes | None = None
    ) -> None:
        self.space = space
        self.base = base
        self._findings = launch.findings
        self._native = launch.native
        self._numbers = launch.lanes.numbers
        self._size = size
        self._stride = 0 if of_all is not None else -(-size // CHUNK) * CHUNK
        self._of_all = of_all

    @cached_property
    def storage(self) -> Storage:  # most kernels use none
        size = max(self._size, self._stride * len(self._numbers), CHUNK)
        storage = Storage(size)
        if self._of_all is not None:
            storage.bytes[: self._size] = np.frombuffer(self._of_all, np.uint8)
        return storage

    def read(self, access: Access) -> Access:
        return self.resolve(access)

    def write(self, access: Access) -> Access:
        return self.resolve(access)

    def covers(self, begin: int, end: int) -> bool:
        return begin >= 0 and end <= self._size

    def inside(self, offsets: Ints, nbytes: int) -> Bools:
        return (offsets >= 0) & (offsets + nbytes <= self._size)

    def outside(self, offset: int) -> str:
        return f"at {self.space} byte {offset} of {self._size}"

    def starts(self, sel: Selection) -> tuple[Ints | None, int]:
        return self._numbers[sel.index] * self._stride, 0
