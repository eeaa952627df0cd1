# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator.machine.lanes import SHARED_BASE
from ptx_emulator.machine.storage.storage import POISON
from tests.emulator.machine.machines import LOAD, STORE, addresses, kinds, make_machine

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WIDTHS = [(size, n) for size in UNSIGNED for n in (1, 2, 4, 8, 16) if size * n <= 16]


@pytest.mark.parametrize(("size", "n"), WIDTHS)
def test_what_is_stored_is_loaded(size: int, n: int) -> None:
    machine = make_machine(ctas=3, warps=2, shared=64 * 16)
    lanes = machine.lanes.all
    rng = np.random.default_rng(size * 16 + n)
    thread = lanes.warp * 32 + lanes.lane
    where = addresses(lanes, rng.permutation(64)[thread] * 16)
    kind = UNSIGNED[size]
    values = tuple(
        rng.integers(0, np.iinfo(kind).max, lanes.count, kind, endpoint=True) for _ in range(n)
    )
    machine.shared.store(lanes, where, size, values, None, STORE)
    loaded = machine.shared.load(lanes, where, size, n, None, LOAD)
    assert len(loaded) == n
    for value, back in zip(values, loaded, strict=True):
        assert back.dtype == kind
        assert (back == value).all()
    joined = np.stack(values, axis=1)
    for lane in (0, 70, 191):
        start = int(where[lane]) + int(lanes.shared_base[lane])
        raw = machine.shared.bytes[start : start + size * n]
        assert raw.tobytes() == joined[lane].tobytes()
    assert kinds(machine) == []


def test_memory_starts_poisoned_and_reading_it_is_found() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    (loaded,) = machine.shared.load(lanes, addresses(lanes, 64), 4, 1, None, LOAD)
    assert (loaded == POISON).all()
    assert np.isnan(loaded.view(np.float16)).all()
    assert np.isnan(loaded.view(np.float32)).all()
    assert kinds(machine) == ["uninitialised-shared"]


def test_one_unset_word_of_four_is_found() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    three = tuple(np.full(32, value, np.uint32) for value in range(3))
    for word, value in enumerate(three):
        machine.shared.store(
            lanes, addresses(lanes, lanes.lane * 16 + 4 * word), 4, (value,), None, STORE
        )
    machine.shared.load(lanes, addresses(lanes, lanes.lane * 16), 8, 1, None, LOAD)
    assert kinds(machine) == []
    machine.shared.load(lanes, addresses(lanes, lanes.lane * 16), 4, 4, None, LOAD)
    assert kinds(machine) == ["uninitialised-shared"]


@pytest.mark.parametrize("offset", [-4, 4096 - 2, 1 << 20])
def test_out_of_bounds_is_found_and_does_no_harm(offset: int) -> None:
    machine = make_machine(ctas=2)
    lanes = machine.lanes.all
    bad = (lanes.cta == 1) & (lanes.lane == 9)
    where = addresses(lanes, np.where(bad, offset, 128 + lanes.lane * 4))
    before = machine.shared.bytes.copy()
    ones = np.ones(lanes.count, np.uint32)
    machine.shared.store(lanes, where, 4, (ones,), None, STORE)
    machine.shared.load(lanes, where, 4, 1, None, LOAD)
    store, load = machine.findings.items
    assert store.kind == load.kind == "shared-out-of-bounds"
    assert (store.cta, store.lane, store.count) == (1, 9, 1)
    assert store.address == (offset + SHARED_BASE) % (1 << 32)
    assert f"shared byte {store.address - SHARED_BASE} of 4096" in store.detail
    changed = np.flatnonzero(before != machine.shared.bytes)
    first, second = set(range(128, 256)), set(range(4096 + 128, 4096 + 256))
    assert set(changed.tolist()) == first | second - set(range(4096 + 164, 4096 + 168))


def test_masked_lanes_may_have_any_address() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    on = lanes.lane < 4
    where = addresses(lanes, np.where(on, lanes.lane * 4, (1 << 30) + 3))
    machine.shared.store(lanes, where, 4, (lanes.lane.astype(np.uint32),), on, STORE)
    (loaded,) = machine.shared.load(lanes, where, 4, 1, on, LOAD)
    assert loaded[:4].tolist() == [0, 1, 2, 3]
    nobody = np.zeros(32, bool)
    machine.shared.store(lanes, where, 4, (lanes.lane.astype(np.uint32),), nobody, STORE)
    machine.shared.load(lanes, where, 4, 1, nobody, LOAD)
    assert kinds(machine) == []


def test_misaligned_access_is_found() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    values = tuple(np.full(32, k, np.uint32) for k in range(4))
    machine.shared.store(lanes, addresses(lanes, lanes.lane * 16 + 8), 4, values, None, STORE)
    (finding,) = machine.findings.items
    assert (finding.kind, finding.count) == ("shared-misaligned", 32)
    assert "no multiple of 16" in finding.detail


def test_a_misaligned_store_takes_the_place_it_rounds_down_to() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    value = (lanes.lane + 5).astype(np.uint64)
    machine.shared.store(lanes, addresses(lanes, lanes.lane * 8 + 4), 8, (value,), None, STORE)
    assert kinds(machine) == ["shared-misaligned"]
    (loaded,) = machine.shared.load(lanes, addresses(lanes, lanes.lane * 8), 8, 1, None, LOAD)
    assert (loaded == value).all()
    assert kinds(machine) == ["shared-misaligned"]


def test_without_checks_only_addresses_are_looked_at() -> None:
    machine = make_machine(checks=False)
    lanes = machine.lanes.all
    machine.shared.load(lanes, addresses(lanes, 0), 4, 1, None, LOAD)
    assert kinds(machine) == []
    machine.shared.load(lanes, addresses(lanes, 1 << 20), 4, 1, None, LOAD)
    assert kinds(machine) == ["shared-out-of-bounds"]
    assert machine.counters.shared_sites == {}


def test_a_kernel_without_shared_memory_can_still_be_told_off() -> None:
    machine = make_machine(shared=16)
    machine.shared._limit = 0
    lanes = machine.lanes.all
    machine.shared.load(lanes, addresses(lanes, 0), 4, 1, None, LOAD)
    assert kinds(machine) == ["shared-out-of-bounds"]
