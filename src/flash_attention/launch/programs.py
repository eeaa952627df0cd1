# SPDX-License-Identifier: Apache-2.0
"""Kernels as programs of the emulator, kept beside their PTX in the compile cache."""

from __future__ import annotations

from functools import lru_cache

from flash_attention.compile import CompiledKernel
from flash_attention.compile.cache import DiskCache
from ptx_emulator import Program, load_program
from ptx_emulator.program.kept import code_to_bytes, from_bytes, take_code, to_bytes

PROGRAM, CODE = "kernel.program", "kernel.code"


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
    elif (code := cache.load_beside(folder.name, CODE)) is not None:
        take_code(program, code)
    return program


def keep_code(kernel: CompiledKernel, program: Program) -> None:
    """Keep the Python of the blocks that a kernel's runs needed, if some of it is new."""
    if kernel.source_path is None or len(program.codes) == program.codes_kept:
        return
    folder = kernel.source_path.parent
    DiskCache(folder.parent).store_beside(folder.name, CODE, code_to_bytes(program))
    program.codes_kept = len(program.codes)
