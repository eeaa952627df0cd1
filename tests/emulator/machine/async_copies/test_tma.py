# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator import GlobalMemory
from ptx_emulator.machine.async_copies.tensor_map import TensorMap
from ptx_emulator.machine.lanes import SHARED_BASE, Selection
from ptx_emulator.machine.machine import Machine
from tests.emulator.conformance import tensor_copies
from tests.emulator.hopper_machine import each, fill_shared, kinds, make_machine, one_lane

Array = NDArray[Any]
MAP = 1 << 40
BAR, BOX = SHARED_BASE, SHARED_BASE + 1024
POISON = 0x7FFF


def machine_with(tensor: TensorMap, memory: GlobalMemory, ctas: int = 1) -> Machine:
    """A machine that knows one tensor map and has one initialised mbarrier a CTA."""
    machine = make_machine(ctas=ctas, warps=2, memory=memory)
    machine.tensor_maps[MAP] = tensor
    for cta in range(ctas):
        lane = one_lane(machine, cta=cta)
        machine.mbarriers.init(lane, each(lane, BAR), each(lane, 1), None, 0)
        machine.mbarriers.fence_inits(lane, None)
    machine.clocks.join_all()
    return machine


def place(lane: Selection, *at: int) -> tuple[Array, ...]:
    """A box of the one tensor map, as an instruction names it."""
    return each(lane, MAP, np.uint64), *(each(lane, coord, np.int32) for coord in at)


def load(
    machine: Machine, at: tuple[int, ...], *, to: int = BOX, expected: int | None = None
) -> None:
    lane = one_lane(machine)
    tensor = machine.tensor_maps[MAP]
    tx = each(lane, tensor.box_bytes if expected is None else expected)
    machine.mbarriers.arrive(lane, each(lane, BAR), tx, None, None, 1)
    machine.tma.load(lane, each(lane, to), place(lane, *at), each(lane, BAR), None, None, 2)


def store(machine: Machine, at: tuple[int, ...], *, cta: int = 0, lane: int = 0) -> None:
    sel = one_lane(machine, lane=lane, cta=cta)
    machine.tma.store(sel, place(sel, *at), each(sel, BOX), None, 3)


def wait(machine: Machine) -> bool:
    lane = one_lane(machine)
    if not machine.mbarriers.ready(lane, each(lane, BAR), each(lane, 0), 2)[0]:
        return False
    machine.mbarriers.acquire(lane, each(lane, BAR))
    return True


def shared_words(machine: Machine, count: int, at: int = BOX) -> Array:
    begin = at - SHARED_BASE
    return machine.shared.bytes[begin : begin + 2 * count].view(np.uint16).copy()


def make_tensor(
    rng: np.random.Generator, dims: tuple[int, ...], box: tuple[int, ...], span: int
) -> tuple[GlobalMemory, TensorMap, Array]:
    """A 16-bit tensor with gaps between its rows, and its values, outermost first."""
    pitch = -(-dims[0] // 8) * 8 + 8
    strides, extent = [], pitch * 2
    for dim in dims[1:]:
        strides.append(extent)
        extent *= dim + 1
    room = rng.integers(1, 30000, extent // 2).astype(np.uint16)
    memory = GlobalMemory(1 << 20)
    address = memory.alloc(room)
    shape, steps = tuple(reversed(dims)), (*reversed(strides), 2)
    values = np.lib.stride_tricks.as_strided(room, shape, steps).copy()
    return memory, TensorMap(address, dims, tuple(strides), box, swizzle=span), values


def expected_image(tensor: TensorMap, values: Array, at: tuple[int, ...]) -> Array:
    """The box as it lies in shared memory, one element at a time."""
    span, row_bytes = tensor.swizzle, tensor.row_bytes
    image = np.zeros(tensor.box_bytes // 2, np.uint16)
    for linear, index in enumerate(np.ndindex(tuple(reversed(tensor.box)))):
        place = tuple(i + c for i, c in zip(index, reversed(at), strict=True))
        inside = all(0 <= p < dim for p, dim in zip(place, values.shape, strict=True))
        byte = linear * 2
        if span:
            assert row_bytes == span
            line, column = divmod(byte, span)
            byte = line * span + (column // 16 ^ line % 8 // (128 // span)) * 16 + column % 16
        image[byte // 2] = values[place] if inside else 0
    return image


Extents = tuple[int, ...]
GEOMETRIES = [
    (dims, box, span, at) for dims, box, span, corners in tensor_copies.GEOMETRIES for at in corners
]
STORABLE = [
    ((-(-dims[0] // 8) * 8, *dims[1:]), box, span, at)
    for dims, box, span, at in GEOMETRIES
    if min(at) >= 0
]


@pytest.mark.parametrize(("dims", "box", "span", "at"), GEOMETRIES)
def test_loads_fill_the_box_and_zero_what_lies_outside(
    dims: Extents, box: Extents, span: int, at: Extents
) -> None:
    memory, tensor, values = make_tensor(np.random.default_rng(0), dims, box, span)
    machine = machine_with(tensor, memory)
    count = tensor.box_bytes // 2
    fill_shared(machine, np.ones(2 * count, np.uint8), BOX)
    load(machine, at)
    assert (shared_words(machine, count) == POISON).all()
    assert wait(machine)
    np.testing.assert_array_equal(shared_words(machine, count), expected_image(tensor, values, at))
    assert kinds(machine) == []


@pytest.mark.parametrize(("dims", "box", "span", "at"), STORABLE)
def test_stores_clip_what_lies_outside(dims: Extents, box: Extents, span: int, at: Extents) -> None:
    rng = np.random.default_rng(1)
    memory, tensor, before = make_tensor(rng, dims, box, span)
    room = memory.allocations[0]
    everything = memory.bytes[room.start : room.end].copy()
    after = rng.integers(30000, 60000, before.shape).astype(np.uint16)
    machine = machine_with(tensor, memory)
    fill_shared(machine, expected_image(tensor, after, at).view(np.uint8), BOX)
    store(machine, at)
    machine.bulk_groups.commit(one_lane(machine))
    np.testing.assert_array_equal(memory.bytes[room.start : room.end], everything)
    machine.bulk_groups.wait(one_lane(machine), 0, False)
    box_index = tuple(
        slice(max(0, c), max(0, c + extent))
        for c, extent in zip(reversed(at), reversed(box), strict=True)
    )
    expected = np.lib.stride_tricks.as_strided(
        everything.view(np.uint16), before.shape, (*reversed(tensor.strides), 2)
    )
    expected[box_index] = after[box_index]
    np.testing.assert_array_equal(memory.bytes[room.start : room.end], everything)
    assert kinds(machine) == []
    store(beyond := machine_with(tensor, memory), (dims[0], *at[1:]))  # reads no shared memory
    assert kinds(beyond) == []


@pytest.mark.parametrize(
    ("action", "dims", "at"),
    [
        ("load", (70, 21), (3, 0)),
        ("load", (70, 21), (-3, 0)),
        ("store", (72, 21), (3, 0)),
        ("store", (72, 21), (-8, 0)),
        ("store", (72, 21), (0, -2)),
        ("store", (70, 21), (8, 0)),
    ],
)
def test_coordinates_that_an_h200_does_not_take_are_reported(
    action: str, dims: Extents, at: Extents
) -> None:
    memory, tensor, _ = make_tensor(np.random.default_rng(4), dims, (64, 9), 128)
    machine = machine_with(tensor, memory)
    fill_shared(machine, np.zeros(tensor.box_bytes, np.uint8), BOX)
    before = memory.bytes.copy()
    (load if action == "load" else store)(machine, at)
    machine.bulk_groups.commit(one_lane(machine))
    machine.bulk_groups.wait(one_lane(machine), 0, False)
    assert kinds(machine) == ["tma-coordinates"]
    np.testing.assert_array_equal(memory.bytes, before)


def small(span: int = 128) -> tuple[GlobalMemory, TensorMap, Array]:
    return make_tensor(np.random.default_rng(2), (64, 8), (64, 8), span)


def test_the_swizzle_follows_the_address() -> None:
    memory, tensor, values = small()
    machine = machine_with(tensor, memory)
    load(machine, (0, 0), to=BOX + 128 * 3)
    assert wait(machine)
    rows = shared_words(machine, 512, BOX + 128 * 3).reshape(8, 8, 8)
    for row in range(8):
        np.testing.assert_array_equal(
            rows[row][np.arange(8) ^ (row + 3) % 8], values[row].reshape(8, 8)
        )


def test_a_phase_waits_for_the_bytes_it_was_told() -> None:
    memory, tensor, _ = small()
    machine = machine_with(tensor, memory)
    load(machine, (0, 0), expected=tensor.box_bytes + 16)
    assert not wait(machine)
    lane = one_lane(machine)
    (sentence,) = machine.mbarriers.describe_waiters(lane, each(lane, BAR), each(lane, 0))
    assert "16 transaction bytes expected" in sentence


def test_reading_a_box_before_its_barrier_is_a_race() -> None:
    memory, tensor, _ = small()
    machine = machine_with(tensor, memory)
    load(machine, (0, 0))
    sel = machine.lanes.warps_of(1, 1)
    address = (BOX + 4 * sel.lane).astype(np.uint32)
    (words,) = machine.shared.load(sel, address, 4, 1, None, 5)
    assert (words == 0x7FFF7FFF).all()
    (finding,) = machine.findings.items
    assert finding.kind == "race"
    assert "bulk load on mbarrier slot 0" in finding.detail


def test_loading_over_what_others_still_read_is_a_race() -> None:
    machine = filled()
    sel = machine.lanes.warps_of(1, 1)
    machine.shared.load(sel, (BOX + 4 * sel.lane).astype(np.uint32), 4, 1, None, 5)
    load(machine, (0, 0))
    assert kinds(machine) == ["race"]


def test_misaligned_and_misplaced_boxes_are_reported() -> None:
    memory, tensor, _ = small()
    machine = machine_with(tensor, memory)
    load(machine, (0, 0), to=BOX + 64)
    assert kinds(machine) == ["tma-alignment"]
    machine = machine_with(tensor, memory)
    load(machine, (0, 0), to=SHARED_BASE + (1 << 16) - 512)
    assert kinds(machine) == ["shared-out-of-bounds"]


def test_the_map_must_exist_and_have_the_rank_of_the_instruction() -> None:
    memory, tensor, _ = small()
    machine = machine_with(tensor, memory)
    store(machine, (0, 0, 0))
    del machine.tensor_maps[MAP]
    lane = one_lane(machine)
    machine.tma.store(lane, place(lane, 0, 0), each(lane, BOX), None, 4)
    assert kinds(machine) == ["tma-tensor-map", "tma-tensor-map"]


def test_a_map_larger_than_its_memory_is_reported_where_it_is_touched() -> None:
    memory = GlobalMemory(1 << 20)
    address = memory.alloc(np.full(64 * 8, 7, np.uint16))
    tensor = TensorMap(address, (64, 12), (128,), (64, 4))
    machine = machine_with(tensor, memory)
    load(machine, (0, 6))
    assert wait(machine)
    assert kinds(machine) == ["global-out-of-bounds"]
    assert machine.findings.items[0].count == 2 * 8
    words = shared_words(machine, 64 * 4).reshape(4, 64)
    assert (words[:2] == 7).all()
    assert (words[2:] == 0).all()


def test_loads_of_memory_nobody_wrote_are_reported() -> None:
    memory = GlobalMemory(1 << 20)
    tensor = TensorMap(memory.alloc(nbytes=1024), (64, 8), (128,), (64, 4))
    machine = machine_with(tensor, memory)
    load(machine, (0, 0))
    assert kinds(machine) == ["uninitialised-global"]


def test_two_ctas_that_store_the_same_rows_conflict() -> None:
    memory = GlobalMemory(1 << 20)
    tensor = TensorMap(memory.alloc(nbytes=64 * 128), (64, 64), (128,), (64, 8))
    for second, found in ((8, []), (7, ["cta-write-conflict"])):
        machine = machine_with(tensor, memory, ctas=2)
        fill_shared(machine, np.zeros(1024, np.uint8), BOX)
        store(machine, (0, 0))
        store(machine, (0, second), cta=1)
        machine.bulk_groups.commit(machine.lanes.all)
        machine.bulk_groups.wait(machine.lanes.all, 0, False)
        assert kinds(machine) == found


def filled() -> Machine:
    memory, tensor, _ = small()
    machine = machine_with(tensor, memory)
    fill_shared(machine, np.zeros(1024, np.uint8), BOX)
    return machine


def overwrite(machine: Machine) -> None:
    sel = machine.lanes.warps_of(0, 1)
    address = (BOX + 4 * sel.lane).astype(np.uint32)
    machine.shared.store(sel, address, 4, [address], None, 6)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("missing", ["nothing", "commit", "wait", "sync"])
def test_the_source_is_free_once_its_group_is_waited_for(missing: str, read: bool) -> None:
    machine = filled()
    store(machine, (0, 0))
    if missing != "commit":
        machine.bulk_groups.commit(one_lane(machine))
    machine.bulk_groups.wait(one_lane(machine), 1 if missing == "wait" else 0, read)
    if missing != "sync":
        machine.clocks.sync_warp(machine.lanes.warps_of(0, 1))
    overwrite(machine)
    assert kinds(machine) == ([] if missing == "nothing" else ["race"])


def test_bulk_groups_belong_to_a_thread() -> None:
    machine = filled()
    store(machine, (0, 0), lane=0)
    machine.bulk_groups.commit(one_lane(machine, lane=0))
    machine.bulk_groups.wait(one_lane(machine, lane=1), 0, True)
    overwrite(machine)
    assert kinds(machine) == ["race"]


def test_only_the_oldest_groups_are_over() -> None:
    memory, tensor, _ = make_tensor(np.random.default_rng(3), (64, 32), (64, 8), 128)
    machine = machine_with(tensor, memory)
    before = memory.bytes.copy()
    fill_shared(machine, np.full(1024, 1, np.uint8), BOX)
    lane = one_lane(machine)
    for row in (0, 8, 16):
        store(machine, (0, row))
        machine.bulk_groups.commit(lane)
    machine.bulk_groups.wait(lane, 2, False)
    changed = np.flatnonzero(memory.bytes != before)
    start = memory.allocations[0].start
    assert changed.min() >= start
    assert changed.max() < start + 8 * tensor.strides[0]


def test_a_read_wait_leaves_the_write_on_its_way() -> None:
    memory, tensor, values = small()
    machine = machine_with(tensor, memory)
    image = expected_image(tensor, values ^ 1, (0, 0)).view(np.uint8)
    fill_shared(machine, image, BOX)
    lane = one_lane(machine)
    before = memory.bytes.copy()
    store(machine, (0, 0))
    machine.bulk_groups.commit(lane)
    machine.bulk_groups.wait(lane, 0, True)
    np.testing.assert_array_equal(memory.bytes, before)
    overwrite(machine)
    machine.bulk_groups.wait(lane, 0, False)
    start = memory.allocations[0].start
    stored = memory.bytes[start : start + tensor.strides[0]].view(np.uint16)[:64]
    np.testing.assert_array_equal(stored, values[0] ^ 1)


@pytest.mark.parametrize("read", [False, True])
def test_the_end_of_the_kernel_lands_stores_and_reports_unread_ones(read: bool) -> None:
    memory, tensor, values = small()
    machine = machine_with(tensor, memory)
    fill_shared(machine, expected_image(tensor, values ^ 1, (0, 0)).view(np.uint8), BOX)
    store(machine, (0, 0))
    machine.bulk_groups.commit(one_lane(machine))
    if read:
        machine.bulk_groups.wait(one_lane(machine), 0, True)
    machine.mbarriers.report_unfinished()
    machine.bulk_groups.report_unfinished()
    start = memory.allocations[0].start
    stored = memory.bytes[start : start + tensor.strides[0]].view(np.uint16)[:64]
    np.testing.assert_array_equal(stored, values[0] ^ 1)
    assert kinds(machine) == ([] if read else ["bulk-store-unwaited"])


def test_a_load_nobody_waits_for_is_reported_at_the_end() -> None:
    memory, tensor, _ = small()
    machine = machine_with(tensor, memory)
    load(machine, (0, 0))
    machine.mbarriers.report_unfinished()
    machine.bulk_groups.report_unfinished()
    assert kinds(machine) == ["bulk-load-unwaited"]


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
def test_ordinary_stores_reach_a_bulk_store_by_a_proxy_fence(fenced: bool, synced: bool) -> None:
    machine = filled()
    overwrite(machine)
    if fenced:
        machine.clocks.fence_proxy(machine.lanes.warps_of(0, 1))
    if synced:
        machine.clocks.sync_warp(machine.lanes.warps_of(0, 1))
    store(machine, (0, 0))
    unfenced = [] if fenced else ["missing-proxy-fence"]
    assert kinds(machine) == ([] if synced else ["intra-warp-race"]) + unfenced


def test_sectors_and_bytes_are_counted() -> None:
    memory, tensor, _ = make_tensor(np.random.default_rng(4), (72, 8), (64, 4), 128)
    machine = machine_with(tensor, memory)
    load(machine, (0, 0))
    load(machine, (16, 6), to=BOX + 1024)
    site = machine.counters.global_sites[2]
    assert site.requests == 2
    assert site.bytes == 4 * 128 + 2 * 112
    assert site.sectors == 4 * 4 + 2 * 4
    assert site.ideal_sectors == 16 + 7
