# SPDX-License-Identifier: Apache-2.0
"""From PTX instructions to Python source; one file an instruction family."""

from ptx_emulator.emit import (
    arithmetic,
    barrier,
    bits,
    bulk,
    call,
    compare,
    control,
    convert,
    integers,
    matrix,
    mbarrier,
    memory,
    move,
    special,
    texture,
    warp,
    wgmma,
    wmma,
)
from ptx_emulator.emit.block import BlockEmitter

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
    "integers",
    "matrix",
    "mbarrier",
    "memory",
    "move",
    "special",
    "texture",
    "warp",
    "wgmma",
    "wmma",
]
