# SPDX-License-Identifier: Apache-2.0
"""What a GPU takes in one launch."""

from __future__ import annotations

import re
from math import prod

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.clusters import Shape
from ptx_emulator.program.program import Program

MAX_THREADS = 1024  # of a block
LARGEST_GRID = (2**31 - 1, 65535, 65535)
LARGEST_BLOCK = (1024, 1024, 64)
STATIC_SHARED = 48 << 10  # bytes of __shared__ variables
_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}


def check_launch(
    program: Program, grid: Shape, block: Shape, cluster: Shape | None, dynamic_smem: int
) -> None:
    """Refuse a launch that a GPU would refuse."""
    if min(*grid, *block, *(cluster or (1,))) < 1:
        threads = block[0] if block[1:] == (1, 1) else block
        text = f"grid {grid} of {threads} threads each"
        text += "" if cluster is None else f" in clusters of {cluster}"
        raise EmulatorError(f"{text}: a GPU launches no empty grid")
    threads, bound = prod(block), program.kernel.max_threads
    if threads > MAX_THREADS:
        raise EmulatorError(f"{threads} threads in a block; a GPU takes up to {MAX_THREADS}")
    if bound is not None and threads > bound:
        raise EmulatorError(
            f"{threads} threads in a block; __launch_bounds__ of the kernel allows {bound}, and the"
            " launch fails. Launch fewer threads, or raise the bound"
        )
    for what, given, most in (("grid", grid, LARGEST_GRID), ("block", block, LARGEST_BLOCK)):
        if any(size > limit for size, limit in zip(given, most, strict=True)):
            raise EmulatorError(f"a {what} of {given}; a GPU takes up to {most}")
    _check_shared(program, dynamic_smem)


def _check_shared(program: Program, dynamic_smem: int) -> None:
    static, target = program.static_smem, program.kernel.target
    if static > STATIC_SHARED:
        raise EmulatorError(
            f"{static} bytes of __shared__ variables; the compiler takes up to {STATIC_SHARED}. Use"
            " extern __shared__ memory for more"
        )
    arch = re.match(r"sm_(\d+)", target)
    limit = _KIB.get(int(arch[1]), 0) << 10 if arch else 0
    if limit and static + dynamic_smem > limit:
        raise EmulatorError(
            f"{static + dynamic_smem} bytes of shared memory, {dynamic_smem} of them dynamic; a"
            f" block of {target} takes up to {limit}"
        )
