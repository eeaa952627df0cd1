# SPDX-License-Identifier: Apache-2.0
"""Global memory: allocations with gaps between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.lanes import GLOBAL_BASE
from ptx_emulator.machine.storage.allocation import Allocation
from ptx_emulator.machine.storage.storage import POISON, ZERO, Storage
from ptx_emulator.ptx.model import Variable

GAP = 4096  # unallocated bytes, at least, around every allocation
ALIGNMENT = 256


class Saved(NamedTuple):
    """Global memory at some time."""

    bytes: NDArray[np.uint8]
    allocations: list[Allocation]
    writers: int
    last_launch: int


class GlobalMemory:
    """Global memory that the host allocates and fills. It grows as needed."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._storage = Storage(max(capacity, 2 * GAP), fill=ZERO)
        self._storage.bytes[:GAP].view(np.uint32)[:] = POISON
        self._top = GAP
        self._starts: list[int] = []
        self.allocations: list[Allocation] = []
        self._variables: dict[str, int] = {}
        self.tensor_maps: dict[int, Any] = {}  # that lie in it, by their addresses
        self.textures: dict[int, Any] = {}  # by the number of their objects
        self.writers = 0  # agents of all launches so far
        self.last_launch = 0  # those of all launches but the last one

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All bytes, starting at address GLOBAL_BASE. Allocating may replace the array."""
        return self._storage.bytes

    def alloc(
        self,
        array: NDArray[Any] | None = None,
        nbytes: int | None = None,
        name: str = "",
        owned: NDArray[np.bool_] | None = None,
    ) -> int:
        """Allocate a copy of `array`, or `nbytes` uninitialised bytes. Returns the address.

        `owned` has one value per element of the array, or per byte. A kernel may only access what
        is True there; padding is False.
        """
        if (array is None) == (nbytes is None):
            raise EmulatorError("give alloc either an array or a number of bytes")
        data = None if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        size = (nbytes or 0) if data is None else data.size
        if size < 0:
            raise EmulatorError(f"cannot allocate {size} bytes")
        marks = None if owned is None else np.ascontiguousarray(owned, np.bool_).reshape(-1)
        if marks is not None:
            if marks.size == 0 or size % marks.size:
                raise EmulatorError(f"{marks.size} ownership marks do not fit {size} bytes")
            marks = marks.repeat(size // marks.size)
        start = self._top
        self._top = -(-(start + size + GAP) // ALIGNMENT) * ALIGNMENT
        self._grow()
        if data is None:
            words = self._storage.words[start // 4 : -(-(start + size) // 4)]
            words[:] = POISON
        else:
            self._storage.bytes[start : start + size] = data
        self._starts.append(start)
        self.allocations.append(Allocation(start, size, name, data is not None, marks))
        return GLOBAL_BASE + start

    def variable(self, variable: Variable) -> int:
        """The address of a variable of the module, which is allocated when it is first needed."""
        if variable.name not in self._variables:
            if variable.size is None:
                raise EmulatorError(f"{variable.name} is declared, but not defined, in this module")
            data = np.frombuffer(variable.data, np.uint8)
            self._variables[variable.name] = self.alloc(data, name=variable.name)
        return self._variables[variable.name]

    def set_variable(self, variable: Variable, value: NDArray[Any]) -> None:
        """Give a variable of the module another value, as cudaMemcpyToSymbol does."""
        start = self.variable(variable) - GLOBAL_BASE
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self._storage.bytes[start : start + data.size] = data

    def read(self, address: int, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[Any]:
        """Return a copy of an array inside one allocation."""
        start = address - GLOBAL_BASE
        size = prod(shape) * np.dtype(dtype).itemsize
        if size == 0:
            return np.zeros(tuple(shape), dtype)
        allocation = self.find(start)
        if allocation is None or start + size > allocation.end:
            raise EmulatorError(f"{size} bytes at address {address:#x} are not allocated")
        return self._storage.bytes[start : start + size].view(dtype).reshape(tuple(shape)).copy()

    def saved(self) -> Saved:
        """What is allocated, and all that it holds; give it to `restore`."""
        stored = self._storage.bytes[: self._top].copy()
        allocations = [allocation.copied() for allocation in self.allocations]
        return Saved(stored, allocations, self.writers, self.last_launch)

    def restore(self, saved: Saved) -> None:
        """Undo what kernels did since `saved`, and forget what was allocated since."""
        self._top = saved.bytes.size
        self._storage.bytes[: self._top] = saved.bytes
        self.allocations = saved.allocations
        self._starts = [allocation.start for allocation in saved.allocations]
        end = GLOBAL_BASE + self._top
        self._variables = {name: at for name, at in self._variables.items() if at < end}
        self.writers, self.last_launch = saved.writers, saved.last_launch

    def find(self, offset: int) -> Allocation | None:
        """Return the allocation that contains address GLOBAL_BASE + `offset`, or None."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self.allocations[index].end:
            return None
        return self.allocations[index]

    def beside(self, offset: int) -> Allocation | None:
        """The allocation that is nearest to an address outside of all, if the gap is its own."""
        near = [a for a in self.allocations if a.start - GAP < offset < a.end + GAP]
        return min(near, key=lambda a: max(a.start - offset, offset - a.end), default=None)

    def _grow(self) -> None:
        old = self._storage
        if self._top <= old.bytes.size:
            return
        size = old.bytes.size
        while size < self._top:
            size *= 2
        try:
            self._storage = Storage(size, fill=ZERO)
        except (MemoryError, ValueError):
            raise EmulatorError(f"{self._top} bytes of global memory do not fit here") from None
        self._storage.bytes[: old.bytes.size] = old.bytes
