# SPDX-License-Identifier: Apache-2.0
"""A conformance case for sm_90a: buffers, tensor maps of them, a kernel of many parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from flash_attention.compile.nvrtc import Compilation, compile_source
from ptx_emulator import Finding, GlobalMemory, TensorMap, load_program, run
from tests.emulator.conformance.case import Array
from tests.emulator.hopper_kernels import ARGUMENTS


@dataclass(frozen=True)
class MapOf:
    """A tensor map of `buffer`, which holds 16-bit elements."""

    buffer: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class HopperCase:
    """`arguments` are names of buffers, maps of them, or plain bytes; `expected` is bit for bit."""

    name: str
    source: str
    entry: str
    threads: int
    smem_bytes: int
    buffers: Mapping[str, Array]
    arguments: tuple[str | MapOf | bytes, ...]
    expected: Mapping[str, Array]


@cache
def compiled_source(source: str) -> Compilation:
    """PTX and cubin of a source."""
    return compile_source(source, source_name="hopper.cu", arguments=ARGUMENTS)


def emulated_hopper(case: HopperCase) -> tuple[dict[str, Array], list[Finding]]:
    """What the emulator leaves in the expected buffers, and what it found."""
    memory = GlobalMemory(1 << 22)
    addresses = {name: memory.alloc(data, name=name) for name, data in case.buffers.items()}
    args: list[int | bytes | TensorMap] = []
    for argument in case.arguments:
        if isinstance(argument, str):
            args.append(addresses[argument])
        elif isinstance(argument, MapOf):
            args.append(
                TensorMap(
                    addresses[argument.buffer],
                    argument.dims,
                    argument.strides,
                    argument.box,
                    swizzle=argument.swizzle,
                    steps=argument.steps,
                )
            )
        else:
            args.append(argument)
    result = run(
        load_program(compiled_source(case.source).ptx, case.entry),
        memory,
        grid=(1, 1, 1),
        block=case.threads,
        args=args,
        dynamic_smem=case.smem_bytes,
    )
    out = {
        name: memory.read(addresses[name], data.dtype, data.shape)
        for name, data in case.expected.items()
    }
    return out, result.findings


def same_bits(first: Array, second: Array) -> bool:
    return np.array_equal(first.view(np.uint8), second.view(np.uint8))
