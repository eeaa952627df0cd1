# SPDX-License-Identifier: Apache-2.0
"""Tiny kernels of sm_90a, one a feature: what they compute, and what is found in them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator import SCHEDULES, GlobalMemory, RunResult
from ptx_emulator.errors import DeadlockError
from ptx_emulator.machine.async_copies.tensor_map import TensorMap
from tests.emulator import hopper_barriers as barriers
from tests.emulator import hopper_kernels as kernels
from tests.emulator.hopper_kernels import kinds, launch
from tests.emulator.operand_layouts import OperandLayout, spread_layout

Array = NDArray[Any]


def to_words(values: Array, dtype: str) -> Array:
    """Small integers in float32 as 16-bit words."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class Coords(ctypes.Structure):
    _fields_ = [("c", ctypes.c_int * 5)]


# One product


def fragments(words: Array) -> Array:
    """A of one warpgroup as [4, 128] registers."""
    thread = np.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    halves = [
        [words[row + 8 * (i & 1), column + 8 * (i >> 1) + j].astype(np.uint32) for j in (0, 1)]
        for i in range(4)
    ]
    return np.stack([low | high << 16 for low, high in halves])


def run_product(
    n: int,
    a_layout: OperandLayout,
    b_layout: OperandLayout,
    *defines: str,
    dtype: str = "f16",
    registers: bool = False,
    accumulate: bool = True,
    signs: tuple[int, int] = (1, 1),
) -> tuple[Array, Array, RunResult]:
    """The accumulators after one wgmma, those expected, and the run."""
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (64, n))
    a_words, b_words = to_words(a, dtype), to_words(b, dtype)
    image = np.zeros(48 << 10, np.uint8)
    a_layout.place(image, a_words, 0)
    b_layout.place(image, b_words, 16 << 10)
    before = rng.integers(-99, 99, (n // 2, 128)).astype(np.float32)
    memory = GlobalMemory()
    after = memory.alloc(nbytes=before.nbytes)
    args = [
        memory.alloc(image),
        len(image) // 16,
        a_layout.descriptor(0),
        b_layout.descriptor(16 << 10),
        memory.alloc(fragments(a_words)),
        memory.alloc(before),
        after,
        int(accumulate),
    ]
    source = kernels.wgmma_source(
        n,
        dtype=dtype,
        registers=registers,
        trans_a=a_layout.transposed,
        trans_b=b_layout.transposed,
        signs=signs,
    )
    result = launch(source, memory, args, *defines, block=128, dynamic_smem=len(image))
    thread, i = np.arange(128)[None], np.arange(n // 2)[:, None]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i >> 1 & 1)
    expected = signs[0] * signs[1] * (a @ b.T)[row, 8 * (i >> 2) + 2 * (thread % 4) + (i & 1)]
    return memory.read(after, np.float32, before.shape), expected + accumulate * before, result


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize(("span", "transposed"), [(128, False), (64, True), (32, True), (0, False)])
def test_one_product(span: int, transposed: bool, registers: bool, dtype: str) -> None:
    layout = spread_layout(span, transposed)
    a_layout = spread_layout(128, False) if registers else layout
    after, expected, result = run_product(24, a_layout, layout, dtype=dtype, registers=registers)
    np.testing.assert_array_equal(after, expected)
    assert kinds(result) == []


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)])
def test_operands_may_be_negated(signs: tuple[int, int]) -> None:
    plain = OperandLayout(128, False, 16, 1024)
    after, expected, result = run_product(16, plain, plain, signs=signs)
    np.testing.assert_array_equal(after, expected)
    assert kinds(result) == []


@pytest.mark.parametrize("n", [8, 104, 256])
def test_products_from_narrow_to_wide(n: int) -> None:
    plain = OperandLayout(128, False, 16, 1024)
    after, expected, result = run_product(n, plain, plain, accumulate=False)
    np.testing.assert_array_equal(after, expected)
    assert kinds(result) == []
    assert result.counters.tensor_operations == 2 * 64 * n * 16


@pytest.mark.parametrize(
    ("define", "found"),
    [
        ("NO_PROXY_FENCE", "missing-proxy-fence"),
        ("NO_WGMMA_FENCE", "wgmma-unfenced"),
        ("READ_IN_FLIGHT", "wgmma-in-flight"),
    ],
)
def test_mistakes_around_one_product(define: str, found: str) -> None:
    plain = OperandLayout(128, False, 16, 1024)
    after, expected, result = run_product(16, plain, plain, define)
    np.testing.assert_array_equal(after, expected)
    assert kinds(result) == [found]


# One tensor copy


def run_copy(
    *defines: str, offset: int = 0, expected: int | None = None, rank: int = 2
) -> tuple[Array, Array, Array, RunResult]:
    """Copy a box from column 8, row 1 of a tensor to column 16, row 2 of another."""
    dims, box = (40, *(6,) * (rank - 1)), (32, *(2,) * (rank - 1))
    sizes = [40 * 2 * 6**i for i in range(rank - 1)]
    words = np.arange(40 * 6 ** (rank - 1), dtype=np.uint16)
    memory = GlobalMemory()
    tensor = TensorMap(memory.alloc(words), dims, tuple(sizes), box, swizzle=64)
    target = memory.alloc(np.zeros_like(words))
    dump = memory.alloc(nbytes=tensor.box_bytes)
    outer = (0,) * (5 - rank)
    args = [
        tensor,
        TensorMap(target, dims, tuple(sizes), box, swizzle=64),
        Coords((8, *(1,) * (rank - 1), *outer)),
        Coords((16, *(2,) * (rank - 1), *outer)),
        offset,
        tensor.box_bytes,
        tensor.box_bytes if expected is None else expected,
        dump,
    ]
    source = kernels.tensor_copy_source(rank)
    result = launch(source, memory, args, *defines, block=32, dynamic_smem=8192)
    shape = tuple(reversed(dims))
    image = memory.read(dump, np.uint16, (tensor.box_bytes // 2,))
    return image, words.reshape(shape), memory.read(target, np.uint16, shape), result


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_a_box_travels_to_shared_memory_and_back(rank: int) -> None:
    image, tensor, target, result = run_copy(rank=rank)
    box = tensor[(*(slice(1, 3),) * (rank - 1), slice(8, 40))]
    expected = np.zeros_like(tensor)
    expected[(*(slice(2, 4),) * (rank - 1), slice(16, 40))] = box[..., :24]
    assert kinds(result) == []
    np.testing.assert_array_equal(target, expected)
    rows = box.reshape(-1, 4, 8)
    for row, chunks in enumerate(image.reshape(-1, 4, 8)):
        np.testing.assert_array_equal(chunks[np.arange(4) ^ row % 8 // 2], rows[row])


def test_expectation_and_arrival_may_be_apart() -> None:
    _, _, target, result = run_copy("EXPECT_APART")
    assert kinds(result) == []
    assert target.any()


@pytest.mark.parametrize(
    ("defines", "found"),
    [
        (("NO_FULL_WAIT",), ["bulk-load-unwaited", "race"]),
        (("WRITE_BOX",), []),
        (("WRITE_BOX", "NO_PROXY_FENCE"), ["missing-proxy-fence"]),
        (("OVERWRITE_BOX",), []),
        (("OVERWRITE_BOX", "READ_WAIT"), []),
        (("OVERWRITE_BOX", "NO_STORE_WAIT"), ["bulk-store-unwaited", "race"]),
        (("NO_STORE_WAIT",), ["bulk-store-unwaited"]),
    ],
)
def test_mistakes_around_a_tensor_copy(defines: tuple[str, ...], found: list[str]) -> None:
    *_, result = run_copy(*defines)
    assert kinds(result) == found


def test_a_box_at_a_bad_address() -> None:
    *_, result = run_copy(offset=64)
    assert "tma-alignment" in kinds(result)
    *_, result = run_copy(offset=128)
    assert kinds(result) == []


@pytest.mark.parametrize("error", [-32, 32])
def test_wrong_transaction_bytes_stop_the_kernel(error: int) -> None:
    with pytest.raises(DeadlockError, match=f"{error} transaction bytes expected") as caught_error:
        run_copy(expected=32 * 2 * 2 + error)
    found = [getattr(item, "kind", "") for item in caught_error.value.findings]
    assert found == (["mbarrier-transaction"] if error < 0 else [])


# mbarriers, named barriers, stmatrix, votes, atomics


def run_ping_pong(*defines: str, rounds: int = 5, schedule: str = "lockstep") -> Any:
    memory = GlobalMemory()
    out = memory.alloc(nbytes=128)
    result = launch(
        barriers.PING_PONG, memory, [rounds, out], *defines, block=64, schedule=schedule
    )
    return memory.read(out, np.int32, (32,)), result


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("defines", [(), ("TEST_WAIT",), ("ARRIVALS=2", "PONG_COUNT=2")])
def test_two_warps_pass_a_ball(defines: tuple[str, ...], schedule: str) -> None:
    ball, result = run_ping_pong(*defines, schedule=schedule)
    expected = np.arange(32)
    for _ in range(5):
        expected = expected * 2 + 1
    np.testing.assert_array_equal(ball, expected)
    assert kinds(result) == []


@pytest.mark.parametrize(
    ("define", "found"),
    [
        ("NO_PING_WAIT", "race"),
        ("NO_INIT_SYNC", "race"),
        ("NO_INIT", "mbarrier-uninitialised"),
        ("ARRIVALS=8", "deadlock"),
        ("PONG_COUNT=5", "deadlock"),
        ("ARRIVALS=3", "deadlock"),
        ("PONG_PARITY=1+round", "race"),
    ],
)
def test_mistakes_around_mbarriers(define: str, found: str) -> None:
    try:
        _, result = run_ping_pong(define)
        seen = kinds(result)
    except DeadlockError as error:
        seen = ["deadlock", *(getattr(item, "kind", "") for item in error.findings)]
    assert found in seen


def run_named(*defines: str, schedule: str = "lockstep") -> tuple[Array, RunResult]:
    memory = GlobalMemory()
    out = memory.alloc(nbytes=256)
    result = launch(
        barriers.NAMED_BARRIERS, memory, [4, out], *defines, block=128, schedule=schedule
    )
    return memory.read(out, np.int32, (64,)), result


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_named_barriers_order_two_roles(schedule: str) -> None:
    sums, result = run_named(schedule=schedule)
    np.testing.assert_array_equal(sums, (63 - np.arange(64)) * (1 + 2 + 3 + 4))
    assert kinds(result) == []


@pytest.mark.parametrize("define", ["MISSING_ARRIVE", "ARRIVE_ELSEWHERE"])
def test_an_unbalanced_named_barrier_stops_the_kernel(define: str) -> None:
    with pytest.raises(DeadlockError, match="barrier 1: "):
        run_named(define)


def test_data_read_before_its_named_barrier_is_a_race() -> None:
    _, result = run_named("READ_EARLY")
    assert "race" in kinds(result)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count: int, trans: bool) -> None:
    memory = GlobalMemory()
    halves = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 4, 2)
    out = memory.alloc(nbytes=count * 128)
    defines = (f"COUNT={count}", *(("TRANS",) if trans else ()))
    args = [memory.alloc(halves), out]
    result = launch(barriers.STORE_MATRICES, memory, args, *defines, block=32)
    stored = memory.read(out, np.uint16, (count, 8, 8))
    matrices = halves.reshape(count, 8, 8)
    np.testing.assert_array_equal(stored, matrices.swapaxes(1, 2) if trans else matrices)
    assert kinds(result) == []


def test_elections_and_votes() -> None:
    memory = GlobalMemory()
    values = np.arange(64, dtype=np.int32)
    out = memory.alloc(nbytes=4 * 256)
    result = launch(barriers.VOTES, memory, [memory.alloc(values), out], block=64)
    elected, some, every, ballot = memory.read(out, np.uint32, (4, 2, 32))
    assert elected.tolist() == [[1] + [0] * 31] * 2
    assert some.tolist() == [[0] * 32, [1] * 32]
    assert every.tolist() == [[1] * 32, [0] * 32]
    masks = [sum(1 << lane for lane in range(32) if (32 * w + lane) % 3 == 0) for w in range(2)]
    assert ballot.tolist() == [[mask] * 32 for mask in masks]
    assert kinds(result) == []


def run_tiles(*defines: str, schedule: str) -> tuple[Array, int, list[str]]:
    """Two launches over the same counters: who took which tile, how many were taken, findings."""
    memory = GlobalMemory()
    counters, taken = memory.alloc(np.zeros(2, np.int32)), memory.alloc(np.zeros(1, np.int32))
    for _ in range(2):
        owner = memory.alloc(np.zeros(11, np.int32))
        result = launch(
            barriers.TILE_SCHEDULER,
            memory,
            [counters, 11, owner, taken],
            *defines,
            block=64,
            ctas=3,
            schedule=schedule,
        )
    total = int(memory.read(taken, np.int32, (1,))[0])
    return memory.read(owner, np.int32, (11,)), total, kinds(result)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_tile_is_taken_once_a_launch(schedule: str) -> None:
    owner, total, found = run_tiles(schedule=schedule)
    assert set(owner) <= {1, 2, 3}
    assert total == 22
    assert found == []


def test_a_counter_left_over_starves_the_next_launch() -> None:
    owner, total, _ = run_tiles("NO_COUNTER_RESET", schedule="lockstep")
    assert not owner.any()
    assert total == 11


def test_a_tile_slot_overwritten_early_is_a_race() -> None:
    assert "race" in run_tiles("NO_SECOND_SYNC", schedule="lockstep")[2]
