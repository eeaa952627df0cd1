# SPDX-License-Identifier: Apache-2.0
"""Kernels as programs of the emulator, kept beside their PTX in the compile cache."""

from __future__ import annotations

from functools import lru_cache

from flash_attention.compile import CompiledKernel
from flash_attention.compile.cache import DiskCache
from ptx_emulator import Program, load_program
from ptx_emulator.program.kept import from_bytes, to_bytes

PROGRAM = "kernel.program"


@lru_cache(maxsize=16)
def program_of(kernel: CompiledKernel) -> Program:
    """The program of a kernel, from disk if a process before this one has run it."""
    if kernel.source_path is None:
        return load_program(kernel.ptx)
    folder = kernel.source_path.parent
    cache = DiskCache(folder.parent)
    data = cache.load_beside(folder.name, PROGRAM)
    program = None if data is None else from_bytes(data, kernel.ptx)
    if program is None:
        program = load_program(kernel.ptx)
        cache.store_beside(folder.name, PROGRAM, to_bytes(program, kernel.ptx))
    return program
