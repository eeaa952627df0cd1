# SPDX-License-Identifier: Apache-2.0
"""From PTX instructions to Python source; one file an instruction family."""

from flash_attention.emulator.emit import (
    arithmetic,
    barrier,
    bits,
    bulk,
    call,
    compare,
    control,
    convert,
    matrix,
    mbarrier,
    memory,
    move,
    special,
    warp,
    wgmma,
)
from flash_attention.emulator.emit.block import BlockEmitter

__all__ = [
    "BlockEmitter",
    "arithmetic",
    "barrier",
    "bits",
    "bulk",
    "call",
    "compare",
    "control",
    "convert",
    "matrix",
    "mbarrier",
    "memory",
    "move",
    "special",
    "warp",
    "wgmma",
]
