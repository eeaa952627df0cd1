# SPDX-License-Identifier: Apache-2.0
"""Kept scratch: temporary memory for single kernels, which costs no allocation in a call.

Kernels of one stream run one after another, so they share memory. That holds for a single kernel
only: the kernels of two threads may alternate in a stream, and the second kernel of one of them
would then find what the other has left. The arguments of several kernels own small memory instead,
as they are in one thread's hands at a time (`launcher.py`). The blocks outlive calls, so torch does
not allocate them, as it does not allocate tile counters.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

from flash_attention.errors import LaunchError
from flash_attention.launch import driver
from flash_attention.launch.device import is_capturing

LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 26  # of a device, for programs that keep making streams


def kept_scratch(device_index: int, stream: int, size: int) -> int:
    """Return the address of `size` bytes that the current stream keeps, or 0 if it has none.

    A graph may be replayed on any stream, so the kernels of one have memory of the graph instead.
    """
    return 0 if is_capturing() else _blocks_of(device_index).find(stream, size)


class _Blocks:
    """The blocks of one device by stream. One that is too small is followed by a larger one, and
    stays for the kernels that have its address."""

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._lock = Lock()
        self._left = MOST_BYTES
        self._blocks: dict[int, tuple[int, int]] = {}  # the address, the size

    def find(self, stream: int, size: int) -> int:
        with self._lock:
            address, room = self._blocks.get(stream, (0, 0))
            if room >= size:
                return address
            room = max(LEAST_BYTES, 1 << (size - 1).bit_length())
            if room > self._left:
                return 0
            try:
                address = driver.zeros(self._device_index, room)
            except LaunchError:  # torch has all memory of the device, and may have some to spare
                self._left = 0
                return 0
            self._left -= room
            self._blocks[stream] = address, room
            return address


@cache
def _blocks_of(device_index: int) -> _Blocks:
    return _Blocks(device_index)
