# SPDX-License-Identifier: Apache-2.0
"""A conformance case on the emulator."""

from __future__ import annotations

import ctypes

import numpy as np

from flash_attention.compile import ENTRY, CompiledKernel, compile_kernel
from ptx_emulator import Finding, GlobalMemory, load_program, run
from tests.emulator.conformance.case import MAX_INPUTS, Array, Case


class Args(ctypes.Structure):
    """Mirror of the struct that `Case.source` declares."""

    _fields_ = (("inputs", ctypes.c_void_p * MAX_INPUTS), ("out", ctypes.c_void_p))


def compiled(case: Case, arch: str | None = None) -> CompiledKernel:
    """The case's kernel, for its own architecture unless another is given."""
    name = "".join(c if c.isalnum() else "_" for c in f"conformance_{case.name}")
    return compile_kernel(case.source, arch=arch or case.arch, name=name)


def emulated(
    case: Case, arch: str | None = None, schedule: str = "lockstep"
) -> tuple[Array, list[Finding]]:
    """What the emulator stores in `out`, and what it has to say about the kernel."""
    memory = GlobalMemory()
    args = Args()
    for i, array in enumerate(case.inputs):
        args.inputs[i] = memory.alloc(array, name=f"in{i}")
    expected = case.expected
    args.out = address = memory.alloc(np.zeros_like(expected), name="out")
    result = run(
        load_program(compiled(case, arch).ptx, ENTRY),
        memory,
        grid=(case.blocks, 1, 1),
        block=case.threads,
        args=[args],
        dynamic_smem=case.smem_bytes,
        schedule=schedule,
    )
    return memory.read(address, expected.dtype, expected.shape), result.findings
