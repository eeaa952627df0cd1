# SPDX-License-Identifier: Apache-2.0
"""What launches of one shape share, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import GlobalMemory
from ptx_emulator.machine.lanes import SHARED_BASE
from ptx_emulator.machine.launch.geometry import LARGEST_KEPT
from tests.emulator.machine.machines import LOAD, STORE, make_machine, warp


def test_launches_that_are_alike_share_their_lanes() -> None:
    first, second = make_machine(2, 2), make_machine(2, 2)
    assert first.lanes is second.lanes
    assert warp(first, 1) is warp(second, 1)
    assert first.lanes is not make_machine(2, 4).lanes
    assert first.lanes is not make_machine(2, 2, shared=8192).lanes


def test_large_launches_keep_nothing() -> None:
    ctas = LARGEST_KEPT // 32 + 1
    first, second = make_machine(ctas, shared=0), make_machine(ctas, shared=0)
    assert first.lanes is not second.lanes


def test_special_registers_and_constants_cannot_be_written() -> None:
    machine = make_machine()
    for array in machine.constants:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1


def test_a_launch_knows_nothing_of_the_one_before() -> None:
    word = (np.ones(32, np.uint32),)
    for _ in range(2):
        machine = make_machine(memory=GlobalMemory())
        lanes = warp(machine, 0)
        where = (SHARED_BASE + lanes.lane * 4).astype(np.uint32)
        machine.shared.load(lanes, where, 4, 1, None, LOAD)
        kinds = [finding.kind for finding in machine.findings.items]
        assert kinds == ["uninitialised-shared"]
        machine.shared.store(lanes, where, 4, word, None, STORE)
        machine.named_barriers.exited(lanes)
        assert machine.gone.all()
        assert machine.counters.shared_sites[STORE].requests == 1
