# SPDX-License-Identifier: Apache-2.0
"""Tile counters, from which the CTAs of a kernel take their tiles, or in which they arrive.

Counters are integers, which are zero before and after a kernel. Counters outlive calls, so torch
does not allocate them: what torch allocates while it captures or warms up a graph belongs to that
graph and is freed with it.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

from flash_attention.launch import driver
from flash_attention.launch.device import is_capturing

COUNTER_BYTES = 4  # int32
BYTES_AT_ONCE = 1 << 15


def tile_counter(device_index: int, stream: int, count: int) -> int:
    """Return the address of `count` counters for a kernel on the current stream of the device.

    Kernels of one stream run one after another and share counters. A graph may be replayed on any
    stream, so each kernel in it has its own counters until the process ends.
    """
    counters = _counters_of(device_index)
    return counters.new(count) if is_capturing() else counters[stream, count]


class _TileCounters(dict[tuple[int, int], int]):
    """The counters of one device by stream and number, made at first use."""

    def __init__(self, device_index: int) -> None:
        super().__init__()
        self._device_index = device_index
        self._lock = Lock()
        self._next = self._end = 0

    def __missing__(self, key: tuple[int, int]) -> int:
        return self.setdefault(key, self.new(key[1]))

    def new(self, count: int) -> int:
        size = count * COUNTER_BYTES
        with self._lock:
            if self._next + size > self._end:
                room = max(size, BYTES_AT_ONCE)
                self._next = driver.zeros(self._device_index, room)
                self._end = self._next + room
            address = self._next
            self._next += size
        return address


@cache
def _counters_of(device_index: int) -> _TileCounters:
    return _TileCounters(device_index)
