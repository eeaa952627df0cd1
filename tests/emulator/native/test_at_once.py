# SPDX-License-Identifier: Apache-2.0
"""Operands, accumulators and bulk copies that are one call of C are the same by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator import GlobalMemory
from ptx_emulator.machine.access import Access, Thread
from ptx_emulator.machine.lanes import SHARED_BASE
from ptx_emulator.machine.launch import launch as of_a_launch
from ptx_emulator.machine.machine import Machine
from ptx_emulator.native import load_native
from tests.emulator.hopper_machine import each, fill_shared, kinds, make_machine, one_lane
from tests.emulator.machine.tensor_cores.test_wgmma import PLAIN

pytestmark = pytest.mark.skipif(load_native() is None, reason="needs a C compiler")

CHAIN = (0, 2, 3, 1)  # the places of its operands, in steps
STORED = 4096  # bytes


def two_machines(monkeypatch: pytest.MonkeyPatch, **shape: int) -> tuple[Machine, Machine]:
    """One that calls C, and one that does not; both may store the same bytes."""

    def made() -> Machine:
        memory = GlobalMemory(1 << 20)
        memory.alloc(np.zeros(STORED, np.uint8), name="stored")
        return make_machine(**shape, memory=memory)

    native = made()
    with monkeypatch.context() as patched:
        patched.setattr(of_a_launch, "load_native", lambda: None)
        return native, made()


def chain(machine: Machine, dtype: str, from_registers: bool, transposed: bool) -> NDArray[Any]:
    """What a chain of products gives after it was run twice."""
    rng = np.random.default_rng(2)
    fill_shared(machine, rng.integers(-4, 5, 1 << 13).astype(np.float16).view(np.uint8))
    sel = machine.lanes.all
    words = [rng.integers(0, 1 << 32, (4, sel.count), np.uint32) for _ in CHAIN]
    places = [each(sel, PLAIN.descriptor(SHARED_BASE + 32 * at), np.uint64) for at in CHAIN]
    left: list[Any] = [tuple(word) for word in words] if from_registers else places
    steps = tuple(zip(left, places, range(5, 5 + len(CHAIN)), strict=True))
    product = sel, 64, (dtype, dtype), steps, True, False, transposed
    matrix = np.ones((sel.num_warps // 4, 64, 64), np.float32)
    for _ in range(2):
        matrix = machine.wgmma.multiply_steps(*product, matrix)
        machine.wgmma.commit(sel)
    return matrix


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("from_registers", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_chains(
    monkeypatch: pytest.MonkeyPatch, dtype: str, from_registers: bool, transposed: bool
) -> None:
    machines = two_machines(monkeypatch, ctas=3, warps=8)
    given = dtype, from_registers, transposed
    with np.errstate(all="ignore"):
        native, numpy = (chain(machine, *given) for machine in machines)
    np.testing.assert_array_equal(native, numpy)
    tables = [machine.shared._state.frame_of_reads() for machine in machines]
    for mine, other in zip(*tables, strict=True):
        np.testing.assert_array_equal(mine, other)
    latest, latest_by_numpy = (machine.shared._latest_read for machine in machines)
    np.testing.assert_array_equal(latest, latest_by_numpy)
    assert kinds(machines[0]) == kinds(machines[1]) == []


def test_a_step_that_is_a_race_is_reported_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = two_machines(monkeypatch, ctas=2)
    for machine in machines:
        chain(machine, "f16", from_registers=False, transposed=False)
        machine.wgmma.wait(machine.lanes.all, 0)
        machine.clocks.join_all()
        writer = machine.lanes.warps_of(1, 1)
        to = (writer.lane.astype(np.int64) * 16 + SHARED_BASE).astype(np.uint32)
        machine.shared.store(writer, to, 4, [each(writer, 1)] * 4, None, 1)
        chain_again = PLAIN.descriptor(SHARED_BASE)
        sel = machine.lanes.all
        place = each(sel, chain_again, np.uint64)
        matrix = np.zeros((2, 64, 64), np.float32)
        steps = ((place, place, 5), (place, place, 6))
        machine.wgmma.multiply_steps(sel, 64, ("f16", "f16"), steps, False, False, False, matrix)
    native, numpy = (machine.findings.items for machine in machines)
    assert [str(finding) for finding in native] == [str(finding) for finding in numpy] != []


def test_accumulators(monkeypatch: pytest.MonkeyPatch) -> None:
    registers = np.random.default_rng(3).random((20, 2 * 3 * 128), np.float32)
    outcomes = []
    for machine in two_machines(monkeypatch, ctas=3, warps=8):
        matrix = machine.wgmma.gather(machine.lanes.all, registers)
        again = machine.wgmma.scatter(machine.lanes.all, matrix, len(registers))
        np.testing.assert_array_equal(again, registers)
        outcomes.append(matrix)
    np.testing.assert_array_equal(outcomes[0], outcomes[1])


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize(("writer", "met"), [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("words", [1, 4])
def test_reads_of_bulk_copies(
    monkeypatch: pytest.MonkeyPatch, fenced: bool, writer: int, met: bool, words: int
) -> None:
    """A lane starts a copy of what it or another lane of its warp wrote, by so many words."""
    found = []
    for machine in two_machines(monkeypatch):
        warp = machine.lanes.warps_of(0, 1)
        for word in range(0, 4, words):
            to = (SHARED_BASE + 16 * warp.lane + 4 * word).astype(np.uint32)
            machine.shared.store(warp, to, 4, [each(warp, 1)] * words, None, 1)
        if fenced:
            machine.clocks.fence_proxy(warp)
        if met:
            machine.clocks.sync_warp(warp)
        agent = machine.clocks.bulk_agent(0)
        thread = Thread(one_lane(machine), 0, 2, alone=True)
        machine.shared.bulk_read(thread, np.array([writer]), agent, 1)
        found.append([str(finding) for finding in machine.findings.items])
        assert machine.shared._latest_read.max() == 1
    assert found[0] == found[1]
    assert bool(found[0]) == (not fenced or (writer == 1 and not met))


@pytest.mark.parametrize("met", [False, True])
@pytest.mark.parametrize("other", [(0, 0, 0), (0, 5, 0), (1, 0, 0), (0, 0, 1)])
def test_stores_for_one_lane(
    monkeypatch: pytest.MonkeyPatch, other: tuple[int, int, int], met: bool
) -> None:
    """An engine stores for a lane over what it stored for a lane: warp, lane and CTA."""
    found, tables = [], []
    for machine in two_machines(monkeypatch, ctas=2):
        start = machine.global_access.memory.allocations[0].start
        where = start + 16 * np.arange(4)
        for warp, lane, cta in (other, (0, 0, 0)):
            number = one_lane(machine, warp, lane, cta).number(0)
            sel = machine.lanes.repeated(number, len(where))
            machine.global_access.check_write(Access(sel, where, 16, None, 3, "bulk store"))
            if met:
                machine.clocks.join_all()
        tables.append(machine.global_access.memory.allocations[0].tables[0])
        found.append([str(finding) for finding in machine.findings.items])
    assert found[0] == found[1]
    np.testing.assert_array_equal(tables[0][:3], tables[1][:3])
    ordered = other == (0, 0, 0) or (met and other[2] == 0)
    assert bool(found[0]) != ordered
