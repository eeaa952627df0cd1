# SPDX-License-Identifier: Apache-2.0
"""Barriers that the lanes of a warp reach apart: __syncthreads in a branch that not all take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptx_emulator.machine.barriers.paths import Paths, Place
from ptx_emulator.machine.lanes import Ints
from ptx_emulator.machine.launch.launch import Launch

Arrived = tuple[Place, Ints]  # where lanes wait, and their numbers


def check_warps(launch: Launch, paths: Paths, arrived: Sequence[Arrived]) -> None:
    """Look at a barrier that completes, and that the lanes of a warp have to reach together."""
    lanes = launch.lanes
    warps = np.unique(np.concatenate([lanes.warp_id[numbers] for _, numbers in arrived]))
    for warp in warps.tolist():
        met: dict[Place, Ints] = {}
        for place, numbers in arrived:
            mine = numbers[lanes.warp_id[numbers] == warp]
            if mine.size:
                met[place] = np.append(met.get(place, mine[:0]), mine)
        _check_warp(launch, paths, warp, met)


def _check_warp(launch: Launch, paths: Paths, warp: int, met: dict[Place, Ints]) -> None:
    """Look at the places where the lanes of a warp wait."""
    here, *elsewhere = met
    pc = _last(launch, here)
    parts = launch.program.kernel.instructions[pc].parts
    if parts[0] == "barrier" and "aligned" not in parts:
        return
    if elsewhere:
        other_pc = _last(launch, elsewhere[0])
        where = "in another turn of the loop" if other_pc == pc else "at another one"
        detail = f"some lanes of the warp wait at this barrier, others {where}"
    else:
        past = paths.past(warp, here)
        if not past:
            return
        other_pc = launch.program.blocks[past[0][1].block].start
        ended = sum(1 << lane for lane, _ in past)
        detail = f"the lanes {ended:#x} of the warp went past this barrier, and ended"
    sel = launch.lanes.gather(met[here])
    everyone = np.ones(sel.count, bool)
    launch.findings.report("divergent-barrier", detail, pc, sel, everyone, None, other_pc)


def _last(launch: Launch, place: Place) -> int:
    """The instruction at the end of a block."""
    block = launch.program.blocks[place.block]
    return block.last
