# SPDX-License-Identifier: Apache-2.0
"""Stores to global memory that an engine makes for one lane, each as one call of native code."""

from __future__ import annotations

from ptx_emulator.machine.access import Access
from ptx_emulator.machine.launch.clocks import Clocks
from ptx_emulator.machine.storage.allocation import Allocation
from ptx_emulator.native import Native


def store_by_one(
    native: Native,
    clocks: Clocks,
    allocation: Allocation,
    access: Access,
    launch: tuple[int, int],
    how: int,
) -> bool:
    """Check and record resolved stores for one lane. `launch` has the number of the last writer
    before it, and how many agents a CTA has; `how` is what a tag says besides the lane.

    If there may be something to report, nothing is done.
    """
    sel, (first_writer, agents) = access.sel, launch
    fields = sel.warp_id, sel.warp, sel.cta, sel.lane
    warp_id, warp, cta, lane = (field.item(0) for field in fields)
    row = clocks.row(warp_id, alone=True)
    number = first_writer + 1 + cta * agents + clocks.lane_agent(warp)
    part = allocation.part(access.nbytes)
    place = access.where, allocation.start, access.nbytes, part, *allocation.tables
    me = *launch, clocks.warps_per_cta, cta, warp, lane
    known = clocks.seen[row], clocks.seen_by_lanes[row]
    mine = number, clocks.seen.item(warp_id, warp), lane + how
    if native.store_by_one(*place, *me, *known, *mine) < 0:
        return False
    allocation.newest = max(allocation.newest, number)
    return True
