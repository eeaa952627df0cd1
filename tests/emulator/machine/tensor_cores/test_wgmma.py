# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.lanes import SHARED_BASE
from ptx_emulator.machine.machine import Machine
from ptx_emulator.machine.tensor_cores.descriptors import Descriptor
from tests.emulator.hopper_machine import each, fill_shared, kinds, make_machine, one_lane
from tests.emulator.operand_layouts import OperandLayout, spread_layout

Array = NDArray[Any]
A_AT, B_AT = 0, 32 << 10
LAYOUTS = [spread_layout(span, trans) for span in (0, 32, 64, 128) for trans in (False, True)]
PLAIN = OperandLayout(128, transposed=False, leading=16, stride=1024)


def random_words(rng: np.random.Generator, rows: int, dtype: str) -> tuple[Array, Array]:
    """16-bit words [rows, 16] and the float64 values they stand for."""
    values = rng.integers(-8, 9, (rows, 16)).astype(np.float32)
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16), values.astype(np.float64)
    return (values.view(np.uint32) >> 16).astype(np.uint16), values.astype(np.float64)


def multiply(
    machine: Machine,
    a: int | tuple[Array, ...],
    b: int,
    n: int,
    *,
    dtype: str = "f16",
    trans: tuple[bool, bool] = (False, False),
    before: Array | None = None,
    scale_d: bool | Array = False,
) -> Array:
    sel = machine.lanes.all
    matrix = np.zeros((machine.num_warps // 4, 64, n), np.float32) if before is None else before
    left = each(sel, a, np.uint64) if isinstance(a, int) else a
    return machine.wgmma.multiply(
        sel, n, (dtype, dtype), left, each(sel, b, np.uint64), scale_d, *trans, matrix, 0
    )


def fragments(words: Array) -> tuple[Array, ...]:
    """Four registers a lane of one warpgroup's A, [64, 16] words."""
    thread = np.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    return tuple(
        words[row + 8 * (i & 1), column + 8 * (i >> 1)].astype(np.uint32)
        | words[row + 8 * (i & 1), column + 8 * (i >> 1) + 1].astype(np.uint32) << 16
        for i in range(4)
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("a_layout", "b_layout"), list(zip(LAYOUTS, LAYOUTS[3:] + LAYOUTS[:3], strict=True))
)
def test_operands_in_every_layout(
    a_layout: OperandLayout, b_layout: OperandLayout, dtype: str
) -> None:
    rng = np.random.default_rng(1)
    machine = make_machine(ctas=2)
    image = np.zeros(1 << 16, np.uint8)
    a_words, a = random_words(rng, 64, dtype)
    b_words, b = random_words(rng, 40, dtype)
    a_layout.place(image, a_words, A_AT)
    b_layout.place(image, b_words, B_AT)
    fill_shared(machine, image)
    result = multiply(
        machine,
        a_layout.descriptor(SHARED_BASE + A_AT),
        b_layout.descriptor(SHARED_BASE + B_AT),
        40,
        dtype=dtype,
        trans=(a_layout.transposed, b_layout.transposed),
    )
    assert kinds(machine) == []
    np.testing.assert_array_equal(result, np.broadcast_to(a @ b.T, (2, 64, 40)))
    assert machine.counters.tensor_operations == 2 * (2 * 64 * 40 * 16)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("registers", [False, True])
def test_every_width(registers: bool, transposed: bool) -> None:
    rng = np.random.default_rng(2)
    machine = make_machine()
    image = np.zeros(1 << 16, np.uint8)
    a_words, a = random_words(rng, 64, "f16")
    b_words, b = random_words(rng, 256, "f16")
    b_layout = OperandLayout(128, transposed, leading=2048 if transposed else 16, stride=1024)
    PLAIN.place(image, a_words, A_AT)
    b_layout.place(image, b_words, B_AT)
    fill_shared(machine, image)
    left = fragments(a_words) if registers else PLAIN.descriptor(SHARED_BASE + A_AT)
    for n in range(8, 257, 8):
        result = multiply(
            machine,
            left,
            b_layout.descriptor(SHARED_BASE + B_AT),
            n,
            trans=(False, transposed),
        )
        np.testing.assert_array_equal(result[0], a @ b[:n].T)
    assert kinds(machine) == []


def test_accumulators_lie_where_the_instruction_has_them() -> None:
    machine = make_machine(ctas=2, warps=8)
    sel = machine.lanes.warps_of(4, 4)
    count = 20
    thread = (sel.warp - 4) * 32 + sel.lane
    matrix = np.arange(2 * 64 * 40, dtype=np.float32).reshape(2, 64, 40)
    registers = machine.wgmma.scatter(sel, matrix, count)
    for i in range(count):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i >> 1 & 1)
        column = 8 * (i >> 2) + 2 * (thread % 4) + (i & 1)
        np.testing.assert_array_equal(registers[i], matrix[sel.cta, row, column])
    np.testing.assert_array_equal(machine.wgmma.gather(sel, registers), matrix)


def test_the_accumulator_is_added_where_scale_d_holds() -> None:
    rng = np.random.default_rng(3)
    machine = make_machine(ctas=3)
    image = np.zeros(1 << 14, np.uint8)
    a_words, a = random_words(rng, 64, "f16")
    PLAIN.place(image, a_words, 0)
    fill_shared(machine, image)
    descriptor = PLAIN.descriptor(SHARED_BASE)
    before = rng.integers(-9, 9, (3, 64, 64)).astype(np.float32)
    unset = np.full((3, 64, 64), np.nan, np.float32)
    product = a @ a.T
    added = multiply(machine, descriptor, descriptor, 64, before=before, scale_d=True)
    np.testing.assert_array_equal(added, product + before)
    fresh = multiply(machine, descriptor, descriptor, 64, before=unset, scale_d=False)
    np.testing.assert_array_equal(fresh, np.broadcast_to(product, fresh.shape))
    by_cta = machine.lanes.all.cta == 1
    mixed = multiply(machine, descriptor, descriptor, 64, before=before, scale_d=by_cta)
    np.testing.assert_array_equal(mixed[1], product + before[1])
    np.testing.assert_array_equal(mixed[[0, 2]], np.stack((product, product)))


def test_ctas_may_use_different_descriptors() -> None:
    rng = np.random.default_rng(4)
    machine = make_machine(ctas=2)
    image = np.zeros(1 << 15, np.uint8)
    words, values = zip(*(random_words(rng, 64, "f16") for _ in range(2)), strict=True)
    for at, tile in enumerate(words):
        PLAIN.place(image, tile, at * 8192)
    fill_shared(machine, image)
    sel = machine.lanes.all
    starts = SHARED_BASE + sel.cta * 8192
    descriptors = (PLAIN.descriptor(0) + (starts >> 4)).astype(np.uint64)
    zero = np.zeros((2, 64, 64), np.float32)
    result = machine.wgmma.multiply(
        sel, 64, ("f16", "f16"), descriptors, descriptors, False, False, False, zero, 0
    )
    for cta in range(2):
        np.testing.assert_array_equal(result[cta], values[cta] @ values[cta].T)
    assert kinds(machine) == []


def test_descriptor_fields() -> None:
    bits = 0x123 | 0x45 << 16 | 0x67 << 32 | 5 << 49 | 2 << 62
    assert Descriptor.decode(bits) == Descriptor(0x1230, 0x450, 0x670, 5, 64)


@pytest.mark.parametrize(("span", "row"), [(128, 3), (64, 2), (32, 1)])
def test_a_tile_off_its_pattern_needs_a_base_offset(span: int, row: int) -> None:
    rng = np.random.default_rng(5)
    layout = OperandLayout(span, False, leading=16, stride=span * 8)
    at = row * 128
    words, values = random_words(rng, 64, "f16")
    image = np.zeros(1 << 14, np.uint8)
    layout.place(image, words, at)
    machine = make_machine()
    fill_shared(machine, image)
    right = layout.descriptor(SHARED_BASE + at, row)
    np.testing.assert_array_equal(multiply(machine, right, right, 64)[0], values @ values.T)
    assert kinds(machine) == []
    wrong = layout.descriptor(SHARED_BASE + at)
    assert (multiply(machine, right, wrong, 64)[0] != values @ values.T).any()
    (finding,) = machine.findings.items
    assert finding.kind == "wgmma-descriptor"
    assert f"base offset must be {row}" in finding.detail


def test_steps_along_k_inside_a_row_need_no_base_offset() -> None:
    machine = make_machine()
    fill_shared(machine, np.zeros(1 << 14, np.uint8))
    for step in range(4):
        descriptor = PLAIN.descriptor(SHARED_BASE + 32 * step)
        multiply(machine, descriptor, descriptor, 64)
    assert kinds(machine) == []


@pytest.mark.parametrize("bit", [14, 30, 46, 52, 61])
def test_reserved_bits_are_reported(bit: int) -> None:
    machine = make_machine()
    fill_shared(machine, np.zeros(1 << 14, np.uint8))
    good = PLAIN.descriptor(SHARED_BASE)
    multiply(machine, good, good | 1 << bit, 64)
    assert kinds(machine) == ["wgmma-descriptor"]


def test_a_descriptor_belongs_to_the_whole_warpgroup() -> None:
    machine = make_machine()
    fill_shared(machine, np.zeros(1 << 15, np.uint8))
    sel = machine.lanes.all
    starts = SHARED_BASE + np.where(sel.warp == 2, 8192, 0)
    b = (PLAIN.descriptor(0) + (starts >> 4)).astype(np.uint64)
    a = each(sel, PLAIN.descriptor(SHARED_BASE), np.uint64)
    zero = np.zeros((1, 64, 64), np.float32)
    machine.wgmma.multiply(sel, 64, ("f16", "f16"), a, b, False, False, False, zero, 0)
    assert kinds(machine) == ["wgmma-descriptor"]


def test_an_operand_must_lie_in_shared_memory() -> None:
    machine = make_machine(smem=8192)
    fill_shared(machine, np.zeros(8192, np.uint8))
    good = PLAIN.descriptor(SHARED_BASE)
    multiply(machine, good, good, 64)
    assert kinds(machine) == []
    assert np.isnan(multiply(machine, good, good, 72)).all()
    below = PLAIN.descriptor(0)
    multiply(machine, below, good, 64)
    assert kinds(machine) == ["shared-out-of-bounds"]
    assert machine.findings.items[0].count == 2
    machine = make_machine(smem=8192 - 16)
    fill_shared(machine, np.zeros(8192 - 16, np.uint8))
    multiply(machine, good, good, 56)
    assert kinds(machine) == ["shared-out-of-bounds"]


def test_all_of_a_warpgroup_takes_part() -> None:
    machine = make_machine(warps=8)
    for index in (slice(0, 96), slice(64, 192), np.arange(127)):
        sel = machine.lanes.select(index)
        with pytest.raises(EmulatorError, match="part of a warpgroup"):
            machine.wgmma.gather(sel, np.stack([each(sel, 0, np.float32)] * 4))


@pytest.mark.parametrize(
    ("commits", "pending", "ordered"),
    [(1, 0, True), (1, 1, False), (2, 1, True), (2, 2, False), (0, 0, False)],
)
def test_operands_are_free_once_their_group_is_waited_for(
    commits: int, pending: int, ordered: bool
) -> None:
    machine = make_machine()
    fill_shared(machine, np.zeros(8192, np.uint8))
    sel = machine.lanes.all
    good = PLAIN.descriptor(SHARED_BASE)
    multiply(machine, good, good, 64)
    for _ in range(commits):
        machine.wgmma.commit(sel)
    machine.wgmma.wait(sel, pending)
    machine.clocks.join_all()
    address = (SHARED_BASE + 4 * (sel.warp * 32 + sel.lane)).astype(np.uint32)
    machine.shared.store(sel, address, 4, [address], None, 1)
    assert kinds(machine) == ([] if ordered else ["race"])


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_warp_waits_for_its_own_part_of_a_product(handed_over: bool) -> None:
    """An arrival at an mbarrier counts for the warpgroup; a store of the warp itself does not."""
    machine = make_machine()
    fill_shared(machine, np.zeros(8192, np.uint8))
    good = PLAIN.descriptor(SHARED_BASE)
    multiply(machine, good, good, 64)
    machine.wgmma.commit(machine.lanes.all)
    writer = machine.lanes.warps_of(0, 1)
    machine.wgmma.wait(writer, 0)
    if handed_over:
        lane, barrier = one_lane(machine), SHARED_BASE + 16384
        machine.mbarriers.init(lane, each(lane, barrier), each(lane, 1), None, 0)
        machine.clocks.sync_warp(writer)
        machine.mbarriers.arrive(lane, each(lane, barrier), None, None, None, 0)
        writer = machine.lanes.warps_of(1, 1)
        machine.mbarriers.acquire(writer, each(writer, barrier))
    address = (SHARED_BASE + 4 * writer.lane).astype(np.uint32)
    machine.shared.store(writer, address, 4, [address], None, 1)
    assert kinds(machine) == ([] if handed_over else ["race"])


@pytest.mark.parametrize("fenced", [False, True])
def test_ordinary_stores_reach_the_tensor_cores_through_a_proxy_fence(fenced: bool) -> None:
    machine = make_machine()
    fill_shared(machine, np.zeros(8192, np.uint8))
    sel = machine.lanes.all
    address = (SHARED_BASE + 4 * (sel.warp * 32 + sel.lane)).astype(np.uint32)
    machine.shared.store(sel, address, 4, [address], None, 1)
    if fenced:
        machine.clocks.fence_proxy(sel)
    machine.clocks.join_all()
    good = PLAIN.descriptor(SHARED_BASE)
    multiply(machine, good, good, 64)
    assert kinds(machine) == ([] if fenced else ["missing-proxy-fence"])


def test_operands_must_have_been_written() -> None:
    machine = make_machine()
    good = PLAIN.descriptor(SHARED_BASE)
    assert np.isnan(multiply(machine, good, good, 64)).all()
    assert kinds(machine) == ["uninitialised-shared"]


@pytest.mark.parametrize("trans_b", [False, True])
def test_a_chain_is_the_sum_of_its_steps(trans_b: bool) -> None:
    """A wgmma that leaves shared memory makes its sum NaN, and every step is looked at."""
    rng = np.random.default_rng(6)
    machine = make_machine(ctas=2)
    image = rng.integers(-4, 5, 1 << 13).astype(np.float16)
    fill_shared(machine, image.view(np.uint8))
    sel, of = machine.lanes.all, (64, ("f16", "f16"))
    places = [
        each(sel, PLAIN.descriptor(SHARED_BASE + 32 * step), np.uint64) for step in (0, 2, 3, 1)
    ]
    matrix = rng.integers(-9, 9, (2, 64, 64)).astype(np.float32)
    steps = tuple((place, place, 7 + at) for at, place in enumerate(places))
    turned = False, trans_b
    chain = machine.wgmma.multiply_steps(sel, *of, steps, True, *turned, matrix)
    one_by_one = matrix
    for a, b, pc in steps:
        one_by_one = machine.wgmma.multiply(sel, *of, a, b, True, *turned, one_by_one, pc)
    np.testing.assert_array_equal(chain, one_by_one)
    operations = 2 * 64 * 64 * 16 * len(steps) * 2
    assert machine.counters.tensor_operations == 2 * operations
    assert kinds(machine) == []
    outside = each(sel, PLAIN.descriptor(SHARED_BASE + (1 << 17)), np.uint64)
    beyond = (*steps[:3], (places[3], outside, 10))
    assert np.isnan(machine.wgmma.multiply_steps(sel, *of, beyond, True, *turned, matrix)).all()
    assert kinds(machine) == ["shared-out-of-bounds"]
