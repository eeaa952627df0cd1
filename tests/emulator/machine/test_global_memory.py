# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flash_attention.emulator import EmulatorError, GlobalMemory
from flash_attention.emulator.machine.global_memory import GAP
from flash_attention.emulator.machine.lanes import GLOBAL_BASE
from tests.emulator.machine.machines import GLOBAL_LOAD, GLOBAL_STORE, kinds, make_machine

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WIDTHS = [(1, 1), (1, 4), (2, 1), (2, 8), (4, 1), (4, 2), (4, 4), (4, 8), (8, 1), (8, 2), (8, 4)]


def at(address: int, offsets: Any) -> np.ndarray:
    return (np.asarray(offsets, np.int64) + address).astype(np.uint64)


def test_allocations_are_copies_apart_from_each_other() -> None:
    memory = GlobalMemory()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in ((3, 5), (1,), (64, 7))]
    places = [memory.alloc(array) for array in arrays]
    original = arrays[0].copy()
    arrays[0][:] = 0
    assert (memory.read(places[0], np.float16, (3, 5)) == original).all()
    assert (memory.read(places[2], np.float16, (64, 7)) == arrays[2]).all()
    assert (memory.read(places[2] + 14, np.float16, (7,)) == arrays[2][1]).all()
    for place, array, following in zip(places, arrays, places[1:], strict=False):
        assert place % 256 == 0
        assert following - (place + array.nbytes) >= GAP
    transposed = memory.alloc(np.arange(6).reshape(2, 3).T)
    assert memory.read(transposed, np.int64, (3, 2)).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_memory_grows() -> None:
    memory = GlobalMemory(capacity=1 << 14)
    arrays = [np.arange(5000, dtype=np.int64) + k for k in range(4)]
    places = [memory.alloc(array) for array in arrays]
    for place, array in zip(places, arrays, strict=True):
        assert (memory.read(place, np.int64, (5000,)) == array).all()


def test_wrong_requests_of_the_host_are_refused() -> None:
    memory = GlobalMemory()
    with pytest.raises(EmulatorError, match="either an array or a number of bytes"):
        memory.alloc()
    with pytest.raises(EmulatorError, match="either an array or a number of bytes"):
        memory.alloc(np.zeros(4), nbytes=32)
    with pytest.raises(EmulatorError, match="-1 bytes"):
        memory.alloc(nbytes=-1)
    place = memory.alloc(nbytes=64)
    with pytest.raises(EmulatorError, match="not allocated"):
        memory.read(place, np.uint8, (65,))
    with pytest.raises(EmulatorError, match="5 ownership marks"):
        memory.alloc(np.zeros(4, np.uint8), owned=np.ones(5, bool))


@pytest.mark.parametrize(("size", "n"), WIDTHS)
def test_what_is_stored_is_loaded(size: int, n: int) -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=3, warps=2, memory=memory)
    lanes = machine.lanes.all
    rng = np.random.default_rng(size * 16 + n)
    place = memory.alloc(nbytes=lanes.count * size * n)
    where = at(place, rng.permutation(lanes.count) * size * n)
    kind = UNSIGNED[size]
    values = tuple(
        rng.integers(0, np.iinfo(kind).max, lanes.count, kind, endpoint=True) for _ in range(n)
    )
    machine.global_access.store(lanes, where, size, values, None, GLOBAL_STORE)
    loaded = machine.global_access.load(lanes, where, size, n, None, GLOBAL_LOAD)
    for value, back in zip(values, loaded, strict=True):
        assert back.dtype == kind
        assert (back == value).all()
    stored = memory.read(place, kind, (lanes.count, n))
    order = (where - np.uint64(place)).astype(np.int64) // (size * n)
    assert (stored[order] == np.stack(values, axis=1)).all()
    assert kinds(machine) == []


@pytest.mark.parametrize("distance", [-16, 512, 512 + GAP - 16])
def test_bytes_between_allocations_are_out_of_bounds(distance: int) -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(512, np.uint8))
    memory.alloc(np.zeros(512, np.uint8))
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    where = at(place, np.where(lanes.lane == 5, distance, lanes.lane * 16))
    before = memory.bytes.copy()
    (loaded, *_) = machine.global_access.load(lanes, where, 4, 4, None, GLOBAL_LOAD)
    assert np.isnan(loaded.view(np.float32)[5])
    ones = (np.ones(32, np.uint32),) * 4
    machine.global_access.store(lanes, where, 4, ones, None, GLOBAL_STORE)
    load, store = machine.findings.items
    assert load.kind == store.kind == "global-out-of-bounds"
    assert (load.lane, load.count, load.address) == (5, 1, place + distance)
    start = place - GLOBAL_BASE
    changed = np.flatnonzero(before != memory.bytes) - start
    assert changed.min() >= 0
    assert changed.max() < 512
    assert not np.isin(np.arange(80, 96), changed).any()


def test_an_access_over_the_end_is_out_of_bounds() -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(10, np.uint32))
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    on = lanes.lane < 3
    machine.global_access.load(lanes, at(place, lanes.lane * 16), 4, 4, on, GLOBAL_LOAD)
    (finding,) = machine.findings.items
    assert (finding.kind, finding.lane, finding.count) == ("global-out-of-bounds", 2, 1)


def test_padding_can_be_out_of_bounds_too() -> None:
    memory = GlobalMemory()
    rows = np.zeros((4, 24), np.float16)
    owned = np.zeros(rows.shape, bool)
    owned[:, :16] = True
    place = memory.alloc(rows, owned=owned)
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    inside = at(place, lanes.lane % 4 * 48 + lanes.lane // 4 % 2 * 16)
    machine.global_access.load(lanes, inside, 4, 4, None, GLOBAL_LOAD)
    assert kinds(machine) == []
    machine.global_access.load(lanes, inside + np.uint64(8), 8, 1, None, GLOBAL_LOAD)
    assert kinds(machine) == []
    machine.global_access.load(lanes, inside + np.uint64(16), 4, 4, None, GLOBAL_LOAD)
    (finding,) = machine.findings.items
    assert (finding.kind, finding.count) == ("global-out-of-bounds", 16)


def test_misaligned_access_is_found() -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(1024, np.uint8))
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    machine.global_access.load(lanes, at(place, lanes.lane * 16 + 2), 2, 1, None, GLOBAL_LOAD)
    assert kinds(machine) == []
    machine.global_access.load(lanes, at(place, lanes.lane * 16 + 2), 4, 1, None, GLOBAL_LOAD)
    assert kinds(machine) == ["global-misaligned"]


def test_masked_lanes_may_have_any_address() -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.arange(32, dtype=np.uint32))
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    on = lanes.lane % 2 == 0
    where = np.where(on, at(place, lanes.lane * 4), np.uint64(7))
    (loaded,) = machine.global_access.load(lanes, where, 4, 1, on, GLOBAL_LOAD)
    assert (loaded[on] == np.arange(0, 32, 2)).all()
    machine.global_access.store(lanes, where, 4, (loaded + 1,), on, GLOBAL_STORE)
    expected = np.arange(32) + on
    assert (memory.read(place, np.uint32, (32,)) == expected).all()
    assert kinds(machine) == []


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_reading_what_nobody_wrote(size: int) -> None:
    memory = GlobalMemory()
    place = memory.alloc(nbytes=256 * size, name="scratch")
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    where = at(place, lanes.lane * size)
    values = (np.ones(32, UNSIGNED[size]),)
    machine.global_access.store(lanes, where, size, values, lanes.lane != 3, GLOBAL_STORE)
    machine.global_access.load(lanes, where, size, 1, lanes.lane != 3, GLOBAL_LOAD)
    assert kinds(machine) == []
    machine.global_access.load(lanes, where, size, 1, None, GLOBAL_LOAD)
    (finding,) = machine.findings.items
    assert (finding.kind, finding.lane, finding.count) == ("uninitialised-global", 3, 1)
    assert "scratch" in finding.detail
    assert np.isnan(memory.read(place + 128 * size, np.float32, (4,))).all()


def test_two_ctas_may_not_store_the_same_bytes() -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(4096, np.uint8))
    machine = make_machine(ctas=2, memory=memory)
    first, second = (machine.lanes.select(slice(k, k + 32)) for k in (0, 32))
    word, half = (np.ones(32, np.uint32),), (np.ones(32, np.uint16),)
    access = machine.global_access
    for _ in range(2):  # a CTA may overwrite its own
        access.store(first, at(place, first.lane * 4), 4, word, None, GLOBAL_STORE)
    access.store(first, at(place, 1024 + first.lane * 4), 2, half, None, GLOBAL_STORE)
    access.store(second, at(place, 1026 + first.lane * 4), 2, half, None, GLOBAL_STORE)
    access.store(second, at(place, 128 + first.lane * 4), 4, word, None, GLOBAL_STORE)
    assert kinds(machine) == []
    access.store(second, at(place, 64 + first.lane * 4), 4, word, None, GLOBAL_STORE)
    (finding,) = machine.findings.items
    assert (finding.kind, finding.count, finding.cta) == ("cta-write-conflict", 16, 1)


def test_two_ctas_that_store_the_same_bytes_at_once() -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(4096, np.uint8))
    machine = make_machine(ctas=2, memory=memory)
    lanes = machine.lanes.all
    chunk = (np.ones(64, np.uint32),) * 4
    machine.global_access.store(lanes, at(place, lanes.lane * 16), 4, chunk, None, GLOBAL_STORE)
    assert kinds(machine) == ["cta-write-conflict"]


def test_a_later_launch_may_overwrite_and_read() -> None:
    memory = GlobalMemory()
    place = memory.alloc(nbytes=256)
    for _ in range(2):
        machine = make_machine(ctas=2, memory=memory)
        for start in (0, 32):
            sel = machine.lanes.select(slice(start, start + 32))
            where = at(place, start * 4 + sel.lane * 4)
            machine.global_access.store(
                sel, where, 4, (np.ones(32, np.uint32),), None, GLOBAL_STORE
            )
        assert kinds(machine) == []
    swapped = make_machine(ctas=2, memory=memory)
    sel = swapped.lanes.select(slice(32, 64))
    where = at(place, sel.lane * 4)  # was stored by CTA 0 of the launches before
    swapped.global_access.load(sel, where, 4, 1, None, GLOBAL_LOAD)
    swapped.global_access.store(sel, where, 4, (np.ones(32, np.uint32),), None, GLOBAL_STORE)
    assert kinds(swapped) == []


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
    ("load", "atomics of another CTA change, and nothing orders the two"),
    ("store", "atomics of another CTA change, and nothing orders the two"),
    ("store before", "atomic on bytes of sums that another CTA stores"),
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


@pytest.mark.parametrize("counted", [False, True])
def test_a_counter_orders_the_last_cta_behind_the_others(counted: bool) -> None:
    memory = GlobalMemory()
    machine = make_machine(ctas=3, memory=memory)
    place, counter = memory.alloc(np.zeros(32, np.float32)), memory.alloc(np.zeros(1, np.uint32))
    access = machine.global_access
    for cta in range(3):
        lanes = machine.lanes.select(slice(32 * cta, 32 * cta + 32))
        where = at(place, lanes.lane * 4)
        access.reduce(lanes, "add", "f32", where, [np.ones(32, np.float32)], None, 9)
        one = machine.lanes.part(lanes, lanes.lane == 0)
        if counted or cta == 2:
            value = np.ones(1, np.uint32)
            access.atomic(one, "add", "u32", at(counter, [0]), value, None, None, 10)
    access.load(lanes, where, 4, 1, None, GLOBAL_LOAD)
    assert kinds(machine) == ([] if counted else ["cta-write-conflict"])


def test_an_unknown_atomic_is_refused() -> None:
    memory = GlobalMemory()
    machine = make_machine(memory=memory)
    lanes = machine.lanes.all
    place = memory.alloc(np.zeros(1, np.uint32))
    ones = np.ones(32, np.uint32)
    where = at(place, lanes.lane * 0)
    with pytest.raises(EmulatorError, match="'sub' is not one of cas, add"):
        machine.global_access.atomic(lanes, "sub", "u32", where, ones, None, None, GLOBAL_STORE)
