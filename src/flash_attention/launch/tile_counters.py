# SPDX-License-Identifier: Apache-2.0
"""Tile counters, from which the CTAs of a kernel take their tiles.

A counter is two integers, which are zero before and after a kernel. Counters outlive calls, so
torch does not allocate them: what torch allocates while it captures or warms up a graph belongs to
that graph and is freed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from threading import Lock

import torch

from flash_attention.launch import driver

COUNTER_BYTES = 8  # int32[2]
COUNTERS_AT_ONCE = 4096


def tile_counter(device_index: int, stream: int) -> int:
    """Return the address of a counter for a kernel on the current stream of the device.

    Kernels of one stream run one after another and share a counter. A graph may be replayed on any
    stream, so each kernel in it has its own counter until the process ends.
    """
    counters = _counters_of(device_index)
    if torch.cuda.is_current_stream_capturing():
        return counters.new()
    return counters[stream]


class _TileCounters(dict[int, int]):
    """The counters of one device by stream, each made at first use."""

    def __init__(self, device_index: int) -> None:
        super().__init__()
        self._lock = Lock()
        self._unused = _addresses(device_index)

    def __missing__(self, stream: int) -> int:
        return self.setdefault(stream, self.new())

    def new(self) -> int:
        with self._lock:
            return next(self._unused)


@cache
def _counters_of(device_index: int) -> _TileCounters:
    return _TileCounters(device_index)


def _addresses(device_index: int) -> Iterator[int]:
    while True:
        size = COUNTER_BYTES * COUNTERS_AT_ONCE
        start = driver.zeros(device_index, size)
        yield from range(start, start + size, COUNTER_BYTES)
