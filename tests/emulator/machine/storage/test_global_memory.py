# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator import EmulatorError, GlobalMemory
from ptx_emulator.machine.lanes import GLOBAL_BASE
from ptx_emulator.machine.storage.global_memory import GAP
from ptx_emulator.ptx.model import Variable
from tests.emulator.machine.machines import GLOBAL_LOAD, GLOBAL_STORE, at, kinds, make_machine

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WIDTHS = [(1, 1), (1, 4), (2, 1), (2, 8), (4, 1), (4, 2), (4, 4), (4, 8), (8, 1), (8, 2), (8, 4)]


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


def test_what_was_done_and_allocated_since_is_undone() -> None:
    memory = GlobalMemory(capacity=1 << 14)
    place = memory.alloc(np.arange(64, dtype=np.uint8))
    kept, late = (Variable(name, 4, 4, "global", name.encode()) for name in ("kept", "late"))
    first = memory.variable(kept)
    before = memory.saved()
    second = memory.variable(late)
    memory.bytes[:] = 7
    lost = memory.alloc(nbytes=1 << 16)
    memory.restore(before)
    assert (memory.read(place, np.uint8, (64,)) == np.arange(64)).all()
    assert memory.read(first, np.uint8, (4,)).tobytes() == b"kept"
    for address in (second, lost):
        assert memory.find(address - GLOBAL_BASE) is None
    assert (memory.variable(kept), memory.variable(late)) == (first, second)
    assert memory.read(second, np.uint8, (4,)).tobytes() == b"late"


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
    access.store(second, at(place, 64 + first.lane * 4), 4, word, None, GLOBAL_STORE)
    assert kinds(machine) == []  # what is there already may be stored again
    word = (np.full(32, 2, np.uint32),)
    access.store(first, at(place, 64 + first.lane * 4), 4, word, None, GLOBAL_STORE)
    (finding,) = machine.findings.items
    assert (finding.kind, finding.count, finding.cta) == ("cta-write-conflict", 32, 0)


@pytest.mark.parametrize("differs", [False, True])
def test_two_ctas_that_store_the_same_bytes_at_once(differs: bool) -> None:
    memory = GlobalMemory()
    place = memory.alloc(np.zeros(4096, np.uint8))
    machine = make_machine(ctas=2, memory=memory)
    lanes = machine.lanes.all
    chunk = ((1 + differs * lanes.lane).astype(np.uint32),) * 4  # the same in both CTAs
    machine.global_access.store(lanes, at(place, lanes.lane * 16), 4, chunk, None, GLOBAL_STORE)
    assert kinds(machine) == ["cta-write-conflict"] * differs


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
