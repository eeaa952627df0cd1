# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator import EmulatorError, GlobalMemory
from tests.emulator.machine.machines import GLOBAL_LOAD, GLOBAL_STORE, at, kinds, make_machine

ATOMICS: dict[str, Any] = {
    "add": lambda old, value: old + value,
    "min": min,
    "max": max,
    "exch": lambda old, value: value,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": lambda old, value: 0 if old >= value else old + 1,
    "dec": lambda old, value: value if old == 0 or old > value else old - 1,
}
CASES = [(op, kind) for op in ATOMICS for kind in ("u32", "i32", "u64")]


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_atomics_happen_in_the_order_of_the_lanes(op: str, kind: str) -> None:
    dtype: Any = {"u32": np.uint32, "i32": np.int32, "u64": np.uint64}[kind]
    bits = np.dtype(dtype).itemsize * 8
    rng = np.random.default_rng(len(op))
    memory = GlobalMemory()
    machine = make_machine(ctas=2, memory=memory)
    lanes = machine.lanes.all
    low = 0 if kind[0] == "u" else -(1 << 31)
    start = rng.integers(low, low + (1 << bits) - 1, 5, dtype)
    value = rng.integers(low, low + (1 << bits) - 1, lanes.count, dtype)
    if op in ("inc", "dec"):
        start, value = start % 8, value % 8
    which = rng.integers(0, 5, lanes.count)
    on = rng.random(lanes.count) < 0.8
    place = memory.alloc(start)
    where = at(place, which * dtype().itemsize)
    old = machine.global_access.atomic(lanes, op, kind, where, value, None, on, GLOBAL_STORE)
    cells = [int(cell) for cell in start]
    for lane in np.flatnonzero(on):
        cell = int(which[lane])
        assert int(old[lane]) == cells[cell]
        result = ATOMICS[op](cells[cell], int(value[lane])) % (1 << bits)
        cells[cell] = result - (1 << bits) if result > np.iinfo(dtype).max else result
    assert memory.read(place, dtype, (5,)).tolist() == cells
    assert old.dtype == dtype
    assert kinds(machine) == []  # two CTAs, but through atomics


def test_atomic_cas_and_float_add() -> None:
    memory = GlobalMemory()
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    lock = memory.alloc(np.zeros(1, np.uint32))
    mine = lanes.lane.astype(np.uint32) + 1
    old = machine.global_access.atomic(
        lanes, "cas", "u32", at(lock, lanes.lane * 0), mine, mine * 0, None, GLOBAL_STORE
    )
    assert old.tolist() == [0] + [1] * 31  # the first lane takes the lock
    sums = memory.alloc(np.array([1.0, 1e-40], np.float32))
    value = np.full(32, 2.0**-24, np.float32)
    old = machine.global_access.atomic(
        lanes, "add", "f32", at(sums, lanes.lane * 0), value, None, None, GLOBAL_STORE
    )
    assert (old == 1).all()  # every addition rounds to fp32: nothing is gathered first
    tiny = np.full(32, 1e-41, np.float32)
    machine.global_access.atomic(
        lanes, "add", "f32", at(sums + 4, lanes.lane * 0), tiny, None, None, GLOBAL_STORE
    )
    assert memory.read(sums, np.float32, (2,)).tolist() == [1, 0]  # subnormals are flushed


def test_stores_behind_atomics_and_atomics_on_nothing() -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=2, memory=memory)
    lanes = machine.lanes.all
    counter = memory.alloc(nbytes=4)
    ones = np.ones(64, np.uint32)
    where = at(counter, lanes.lane * 0)
    machine.global_access.atomic(lanes, "add", "u32", where, ones, None, None, GLOBAL_STORE)
    assert kinds(machine) == ["uninitialised-global"]
    machine.global_access.atomic(lanes, "add", "u32", where, ones, None, None, GLOBAL_STORE)
    (finding,) = machine.findings.items
    assert finding.count == 64
    machine.clocks.sync_warp(lanes)
    last = lanes.lane == 0
    one = machine.lanes.part(lanes, last & (lanes.cta == 1))
    machine.global_access.store(one, where[:1], 4, (ones[:1],), None, GLOBAL_STORE)
    assert kinds(machine) == ["uninitialised-global"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_reductions_add_vectors_in_the_order_of_the_lanes(count: int) -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=2, memory=memory)
    lanes = machine.lanes.all
    values = np.random.default_rng(count).standard_normal((count, 64)).astype(np.float32)
    which, on = lanes.lane % 3, lanes.lane != 7
    place = memory.alloc(np.ones((3, count), np.float32), name="sums")
    where = at(place, which * 4 * count)
    machine.global_access.reduce(lanes, "add", "f32", where, list(values), on, GLOBAL_STORE)
    expected = np.ones((3, count), np.float32)
    for lane in np.flatnonzero(on):
        expected[which[lane]] += values[:, lane]
    assert np.array_equal(memory.read(place, np.float32, (3, count)), expected)
    assert kinds(machine) == []


def test_a_vector_is_added_at_a_multiple_of_its_size() -> None:
    memory = GlobalMemory()
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    place = memory.alloc(np.zeros(256, np.float32))
    ones = [np.ones(32, np.float32)] * 4
    where = at(place, lanes.lane * 16 + 8)
    machine.global_access.reduce(lanes, "add", "f32", where, ones, None, GLOBAL_STORE)
    assert kinds(machine) == ["global-misaligned"]


CONFLICTS = [
    ("load", "that CTA 0 warp 0 lane 0 wrote by an addition, and nothing orders the two"),
    ("store", "that CTA 0 warp 0 lane 0 wrote by an addition, and nothing orders the two"),
    (
        "store before",
        "atomic of bytes of sums that CTA 1 warp 0 lane 0 wrote, and nothing orders the two",
    ),
]


@pytest.mark.parametrize("both_add", [False, True])
@pytest.mark.parametrize(("plain", "detail"), CONFLICTS)
def test_plain_accesses_among_additions_of_other_ctas(
    plain: str, detail: str, both_add: bool
) -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=2, memory=memory)
    first, second = (machine.lanes.select(slice(k, k + 32)) for k in (0, 32))
    place = memory.alloc(np.zeros(32, np.float32), name="sums")
    where, ones = at(place, first.lane * 4), np.ones(32, np.float32)
    access = machine.global_access

    def touch() -> None:
        if plain == "load":
            access.load(second, where, 4, 1, None, GLOBAL_LOAD)
        else:
            access.store(second, where, 4, (ones.view(np.uint32),), None, GLOBAL_STORE)

    if plain == "store before":
        touch()
    access.reduce(first, "add", "f32", where, [ones], None, 9)
    if both_add:
        access.reduce(second, "add", "f32", where, [ones], None, 9)
    if plain != "store before":
        touch()
    (finding,) = machine.findings.items
    assert (finding.kind, finding.count) == ("cta-write-conflict", 32)
    assert detail in finding.detail


def test_a_cta_may_load_and_store_what_it_alone_adds_to() -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=2, memory=memory)
    lanes = machine.lanes.all
    place = memory.alloc(np.zeros(64, np.float32))
    where, ones = at(place, (lanes.cta * 32 + lanes.lane) * 4), np.ones(64, np.float32)
    access = machine.global_access
    access.store(lanes, where, 4, (ones.view(np.uint32),), None, GLOBAL_STORE)
    access.reduce(lanes, "add", "f32", where, [ones], None, 9)
    (sums,) = access.load(lanes, where, 4, 1, None, GLOBAL_LOAD)
    access.store(lanes, where, 4, (sums,), None, GLOBAL_STORE)
    assert (sums.view(np.float32) == 2).all()
    assert kinds(machine) == []


def test_the_launch_after_the_additions_may_load_and_store() -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(32, np.float32))
    for _ in range(2):
        machine = make_machine(ctas=2, memory=memory)
        lanes, access = machine.lanes.all, machine.global_access
        second = machine.lanes.select(slice(32, 64))
        where, ones = at(place, second.lane * 4), np.ones(32, np.uint32)
        access.load(second, where, 4, 1, None, GLOBAL_LOAD)
        access.store(second, where, 4, (ones,), None, GLOBAL_STORE)
        machine = make_machine(ctas=2, memory=memory)
        both = at(place, lanes.lane * 4)
        machine.global_access.reduce(
            machine.lanes.all, "add", "f32", both, [np.ones(64, np.float32)], None, 9
        )
        assert kinds(machine) == []


@pytest.mark.parametrize(
    ("counted", "before", "behind"),
    [(True, "gpu", "gpu"), (False, "gpu", "gpu")]
    + [(True, before, "gpu") for before in ("", "cta")]
    + [(True, "gpu", behind) for behind in ("", "cta")],
)
def test_a_counter_between_fences_orders_the_last_cta_behind_the_others(
    counted: bool, before: str, behind: str
) -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=3, memory=memory, fences=True)
    place, counter = memory.alloc(np.zeros(32, np.float32)), memory.alloc(np.zeros(1, np.uint32))
    access = machine.global_access
    for cta in range(3):
        lanes = machine.lanes.select(slice(32 * cta, 32 * cta + 32))
        where = at(place, lanes.lane * 4)
        access.reduce(lanes, "add", "f32", where, [np.ones(32, np.float32)], None, 9)
        if before:
            machine.clocks.fence(lanes, before, None)
        machine.clocks.sync_warp(lanes)
        one = machine.lanes.part(lanes, lanes.lane == 0)
        if counted or cta == 2:
            value = np.ones(1, np.uint32)
            access.atomic(one, "add", "u32", at(counter, [0]), value, None, None, 10)
    machine.clocks.sync_warp(lanes)
    if behind:
        machine.clocks.fence(lanes, behind, None)
    access.load(lanes, where, 4, 1, None, GLOBAL_LOAD)
    right = counted and before == behind == "gpu"
    assert kinds(machine) == ([] if right else ["cta-write-conflict"])
    if counted and not right:
        assert "no fence before or behind it" in machine.findings.items[0].detail


def test_an_unknown_atomic_is_refused() -> None:
    memory = GlobalMemory()
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    place = memory.alloc(np.zeros(1, np.uint32))
    ones = np.ones(32, np.uint32)
    where = at(place, lanes.lane * 0)
    with pytest.raises(EmulatorError, match="'sub' is not one of cas, add"):
        machine.global_access.atomic(lanes, "sub", "u32", where, ones, None, None, GLOBAL_STORE)
