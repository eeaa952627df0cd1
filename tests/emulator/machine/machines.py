# SPDX-License-Identifier: Apache-2.0
"""Machines to drive by hand: real ones, of a program whose instructions stand for places."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import GlobalMemory, load_program
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.machine import Machine

PLACES = """.version 8.7
.target sm_90a
.address_size 64
.file 1 "places.cu"
.visible .entry places()
{
.reg .b32 %r<8>;
.reg .b64 %rd<4>;
.extern .shared .align 16 .b8 buffer[];
.loc 1 10 0
st.shared.u32 [buffer], %r0;
.loc 1 11 0
ld.shared.u32 %r1, [buffer];
.loc 1 12 0
cp.async.cg.shared.global [buffer], [%rd0], 16;
.loc 1 13 0
ld.global.u32 %r2, [%rd0];
.loc 1 14 0
st.global.u32 [%rd1], %r2;
bar.sync 0;
mov.b32 %r3, 0;
mov.b32 %r3, 0;
wgmma.fence.sync.aligned;
ret;
}
"""  # whose last instruction says that engines run beside threads
STORE, LOAD, COPY, GLOBAL_LOAD, GLOBAL_STORE = range(5)  # instruction numbers
FIRST_LINE = 11  # PTX line of instruction 0; a .loc stands before each of them


def make_machine(
    ctas: int = 1,
    warps: int = 1,
    shared: int = 4096,
    memory: GlobalMemory | None = None,
    checks: bool = True,
    fences: bool = False,
) -> Machine:
    """A machine with `shared` bytes of shared memory a CTA. `fences`: its program has some."""
    program = load_program(PLACES.replace("bar.sync", "membar.gl;\nbar.sync") if fences else PLACES)
    given = memory or GlobalMemory()
    return Machine(program, given, (ctas, 1, 1), 32 * warps, (), shared, checks)


def warp(machine: Machine, number: int) -> Selection:
    """One warp of every CTA."""
    return machine.lanes.warps_of(number, 1)


def addresses(sel: Selection, offsets: NDArray[np.int64] | int) -> NDArray[np.uint32]:
    """Shared addresses of byte offsets, one for every lane of a selection."""
    spread = np.broadcast_to(np.asarray(offsets, np.int64) + SHARED_BASE, sel.count)
    return spread.astype(np.uint32)


def at(address: int, offsets: Any) -> NDArray[np.uint64]:
    """Global addresses of byte offsets."""
    return (np.asarray(offsets, np.int64) + address).astype(np.uint64)


def kinds(machine: Machine) -> list[str]:
    return [finding.kind for finding in machine.findings.items]
