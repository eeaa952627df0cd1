# SPDX-License-Identifier: Apache-2.0
"""Who made the other access, and what had to stand between the two."""

from __future__ import annotations

from ptx_emulator.machine.checks.shadow_state import LANE_MASK
from ptx_emulator.machine.lanes import WARP_SIZE
from ptx_emulator.machine.launch.clocks import Clocks


def who(clocks: Clocks, agent: int, tag: int) -> str:
    """An agent, and its lane if a tag names one."""
    warp, lane = agent % clocks.warps_per_cta, tag & LANE_MASK
    if agent < 2 * clocks.warps_per_cta and lane < WARP_SIZE:
        return f"lane {lane} of {clocks.describe(warp)}"
    return clocks.describe(agent)


def missing(clocks: Clocks, agent: int, warp: int) -> str:
    """What orders an access of a warp behind what an agent did."""
    theirs = clocks.warp_of(agent)
    same_cta = theirs is None or clocks.rank_of(theirs) == clocks.rank_of(warp)
    barrier = clocks.barriers if same_cta else f"{clocks.barriers} of the cluster"
    wait = clocks.wait_for(agent)
    if wait is None:
        return f", with no {barrier} in between"
    needs_barrier = theirs is not None and theirs != warp
    return f", with no {wait}{f' and {barrier}' if needs_barrier else ''} in between"
