# SPDX-License-Identifier: Apache-2.0
"""Writes over what a wgmma reads, natively and by NumPy: they need the waits of all four warps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptx_emulator.machine.access import Access, Thread
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.launch import launch as of_a_launch
from ptx_emulator.machine.machine import Machine
from ptx_emulator.native import load_native
from tests.emulator.hopper_machine import each, fill_shared, kinds, make_machine, one_lane
from tests.emulator.machine.tensor_cores.test_wgmma import PLAIN, multiply

OPERAND = 8192  # bytes
Write = Callable[[Machine, Selection], None]


@pytest.fixture(params=["native", "numpy"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One with a product of its second warpgroup on its way, and nothing else that is not known."""
    if request.param == "numpy":
        monkeypatch.setattr(of_a_launch, "load_native", lambda: None)
    elif load_native() is None:
        pytest.skip("needs a C compiler")
    made = make_machine(warps=8)
    fill_shared(made, np.zeros(OPERAND, np.uint8))
    descriptor = PLAIN.descriptor(SHARED_BASE)
    multiply(made, descriptor, descriptor, 64)
    made.wgmma.commit(made.lanes.all)
    made.wgmma.wait(made.lanes.warps_of(0, 4), 0)
    made.clocks.join_all()
    return made


def store(machine: Machine, writer: Selection) -> None:
    offsets = writer.lane.astype(np.int64) * 16 + SHARED_BASE
    machine.shared.check_write(Access(writer, offsets, 16, None, 0, "store"))


def load_in_bulk(machine: Machine, writer: Selection) -> None:
    lane = one_lane(machine, int(writer.warp[0]))
    agent = machine.clocks.barrier_agent(0)
    begin = SHARED_BASE
    machine.shared.engine_write(Thread(lane, 0, 0), begin, begin + OPERAND, agent, 1)


@pytest.mark.parametrize("write", [store, load_in_bulk])
@pytest.mark.parametrize("waiting", range(5))
def test_a_part_of_the_waits_is_not_enough(machine: Machine, waiting: int, write: Write) -> None:
    for warp in range(4, 4 + waiting):
        machine.wgmma.wait(machine.lanes.warps_of(warp, 1), 0)
    machine.clocks.join_all()
    write(machine, machine.lanes.warps_of(4, 1))
    assert kinds(machine) == ([] if waiting == 4 else ["race"])


@pytest.mark.parametrize("write", [store, load_in_bulk])
@pytest.mark.parametrize("arriving", [0, 4])
def test_an_arrival_hands_over_the_product_of_its_warpgroup(
    machine: Machine, arriving: int, write: Write
) -> None:
    warp = machine.lanes.warps_of(arriving, 1)
    machine.wgmma.wait(warp, 0)
    lane, barrier = one_lane(machine, arriving), SHARED_BASE + 16384
    machine.mbarriers.init(lane, each(lane, barrier), each(lane, 1), None, 0)
    machine.clocks.sync_warp(warp)
    machine.mbarriers.arrive(lane, each(lane, barrier), None, None, None, 0)
    writer = machine.lanes.warps_of(1, 1)
    machine.mbarriers.acquire(writer, each(writer, barrier))
    write(machine, writer)
    assert kinds(machine) == ([] if arriving == 4 else ["race"])
