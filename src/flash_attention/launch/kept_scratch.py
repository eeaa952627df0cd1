# SPDX-License-Identifier: Apache-2.0
"""Kept scratch: temporary memory for single kernels, which costs no allocation in a call.

Kernels of one stream run one after another, so they share a block. That holds for a single kernel
only: the kernels of two threads may alternate in a stream, and the second kernel of one of them
would then find what the other has left. The blocks outlive calls, so torch does not allocate them,
as it does not allocate tile counters.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

from flash_attention.launch import driver
from flash_attention.launch.device import is_capturing

BLOCK_BYTES = 1 << 20
MAX_BLOCKS = 64  # of a device, for programs that keep making streams


def kept_scratch(device_index: int, stream: int) -> int:
    """Return the address of the current stream's block of BLOCK_BYTES, or 0 if it has none.

    A graph may be replayed on any stream, so the kernels of one have memory of the graph instead.
    """
    return 0 if is_capturing() else _blocks_of(device_index)[stream]


class _Blocks(dict[int, int]):
    """The blocks of one device by stream, made at first use."""

    def __init__(self, device_index: int) -> None:
        super().__init__()
        self._device_index = device_index
        self._lock = Lock()

    def __missing__(self, stream: int) -> int:
        with self._lock:
            if stream not in self:
                if len(self) >= MAX_BLOCKS:
                    return 0
                self[stream] = driver.zeros(self._device_index, BLOCK_BYTES)
        return self[stream]


@cache
def _blocks_of(device_index: int) -> _Blocks:
    return _Blocks(device_index)
