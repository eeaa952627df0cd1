# SPDX-License-Identifier: Apache-2.0
"""A machine with an idle kernel, to drive its units by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import GlobalMemory, load_program
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.machine import Machine

# Tests name instructions by number; these do nothing. The last one makes it a kernel with engines.
_IDLE = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry idle()
{
.reg .b32 %r<1>;
"""
_IDLE += "mov.b32 %r0, 0;\n" * 15 + "wgmma.fence.sync.aligned;\nret;\n}\n"


def make_machine(
    ctas: int = 1, warps: int = 4, smem: int = 1 << 16, memory: GlobalMemory | None = None
) -> Machine:
    program = load_program(_IDLE)
    given = GlobalMemory(1 << 20) if memory is None else memory
    return Machine(program, given, (ctas, 1, 1), 32 * warps, [], smem, True)


def one_lane(machine: Machine, warp: int = 0, lane: int = 0, cta: int = 0) -> Selection:
    """The selection of a single lane."""
    number = (warp * machine.num_ctas + cta) * 32 + lane
    return machine.lanes.select(np.array([number]))


def each(sel: Selection, value: int, dtype: Any = np.uint32) -> NDArray[Any]:
    """One value for every lane."""
    return np.full(sel.count, value, dtype)


def kinds(machine: Machine) -> list[str]:
    """The kinds of all findings so far."""
    return [finding.kind for finding in machine.findings.items]


def fill_shared(machine: Machine, image: NDArray[np.uint8], address: int = SHARED_BASE) -> None:
    """Every CTA writes `image` to shared memory, makes it visible to all and to the engines."""
    chunks = image.view(np.uint32).reshape(-1, 4)
    sel = machine.lanes.all
    thread = sel.warp * 32 + sel.lane
    for first in range(0, len(chunks), machine.block):
        index = first + thread
        values = list(chunks[np.minimum(index, len(chunks) - 1)].T)
        to = (address + 16 * index).astype(np.uint32)
        machine.shared.store(sel, to, 4, values, index < len(chunks), 0)
    machine.clocks.fence_proxy(machine.lanes.all)
    machine.clocks.join_all()
