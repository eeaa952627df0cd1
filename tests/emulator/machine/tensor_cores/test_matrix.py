# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import EmulatorError
from ptx_emulator.machine.access import Access
from ptx_emulator.machine.machine import Machine
from tests.emulator.machine.machines import LOAD, STORE, addresses, kinds, make_machine

SHARED = 16 * 256


def filled(ctas: int, warps: int, seed: int = 0) -> Machine:
    """A machine whose shared memory holds random 16-bit numbers that all may rely on."""
    machine = make_machine(ctas, warps, SHARED)
    rng = np.random.default_rng(seed)
    machine.shared.bytes[:] = rng.integers(0, 256, machine.shared.bytes.size, np.uint8)
    everyone = machine.lanes.warps_of(0, 1)
    for start in range(0, SHARED, 512):
        offsets = start + everyone.lane * 16 + everyone.cta * machine.shared_stride
        machine.shared.check_write(Access(everyone, offsets, 16, None, STORE, "store"))
    machine.clocks.join_all()
    return machine


def halves(machine: Machine, cta: int, address: int) -> np.ndarray:
    start = cta * machine.shared_stride + address
    return machine.shared.bytes[start : start + 16].view(np.uint16)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_by_its_definition(count: int, trans: bool) -> None:
    machine = filled(ctas=2, warps=3)
    lanes = machine.lanes.all
    rng = np.random.default_rng(count)
    rows = rng.integers(0, SHARED // 16, lanes.count) * 16
    rows[lanes.lane >= 8 * count] = 1 << 20  # addresses that are not looked at
    where = addresses(lanes, rows)[None]
    registers = machine.matrix.ldmatrix(lanes, where, count, trans, (LOAD,))
    assert len(registers) == count
    for lane in range(lanes.count):
        own, cta = int(lanes.lane[lane]), int(lanes.cta[lane])
        for matrix in range(count):
            row_of = lane - own + 8 * matrix
            low, high = int(registers[matrix][lane]) & 0xFFFF, int(registers[matrix][lane]) >> 16
            row, column = own // 4, own % 4 * 2
            if trans:
                expected = [
                    halves(machine, cta, int(rows[row_of + column + k]))[row] for k in (0, 1)
                ]
            else:
                expected = list(halves(machine, cta, int(rows[row_of + row]))[column : column + 2])
            assert [low, high] == expected
    assert kinds(machine) == []


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix_is_the_inverse_of_ldmatrix(count: int, trans: bool) -> None:
    machine = filled(ctas=2, warps=2)
    lanes = machine.lanes.all
    rng = np.random.default_rng(count)
    places = rng.permutation(SHARED // 16)[lanes.warp * 32 + lanes.lane] * 16
    where = addresses(lanes, np.where(lanes.lane < 8 * count, places, 1 << 20))
    values = tuple(rng.integers(0, 1 << 32, lanes.count, np.uint32) for _ in range(count))
    untouched = machine.shared.bytes.copy()
    machine.matrix.stmatrix(lanes, where, count, trans, values, STORE)
    machine.clocks.sync_warp(lanes)
    back = machine.matrix.ldmatrix(lanes, where[None], count, trans, (LOAD,))
    for value, again in zip(values, back, strict=True):
        assert (value == again).all()
    changed = np.flatnonzero(untouched != machine.shared.bytes)
    written = where[lanes.lane < 8 * count] + lanes.shared_base[lanes.lane < 8 * count]
    assert set(changed // 16) <= set(written // 16)
    assert kinds(machine) == []


def test_stmatrix_must_be_followed_by_a_syncwarp() -> None:
    machine = filled(1, 1)
    lanes = machine.lanes.all
    where = addresses(lanes, lanes.lane * 16)
    values = (np.zeros(32, np.uint32),) * 4
    machine.matrix.stmatrix(lanes, where, 4, False, values, STORE)
    machine.shared.load(lanes, where, 4, 4, None, LOAD)
    assert kinds(machine) == ["intra-warp-race"]


def test_matrix_moves_out_of_bounds() -> None:
    machine = filled(1, 1)
    lanes = machine.lanes.all
    where = addresses(lanes, np.where(lanes.lane == 20, SHARED, lanes.lane * 16))
    machine.matrix.ldmatrix(lanes, where[None], 4, False, (LOAD,))
    machine.matrix.stmatrix(lanes, where, 4, False, (np.zeros(32, np.uint32),) * 4, STORE)
    assert [(f.kind, f.lane, f.count) for f in machine.findings.items] == [
        ("shared-out-of-bounds", 20, 1)
    ] * 2


def to_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """fp16 bits, or fp32 cut to bf16 (the values fit)."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def pair(matrix: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Two neighbours of a row as one register."""
    low = matrix[row, column].astype(np.uint32)
    high = matrix[row, column + 1].astype(np.uint32)
    register: np.ndarray = low | high << np.uint32(16)
    return register


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("steps", "fragments"), [(1, 1), (8, 8), (4, 16)])
def test_mma_against_float64(dtype: str, steps: int, fragments: int) -> None:
    machine = make_machine(ctas=2, warps=3)
    lanes = machine.lanes.all
    warps = machine.num_warps
    rng = np.random.default_rng(steps)
    a = to_bits(rng.standard_normal((warps, 16, 16 * steps)), dtype)
    b = to_bits(rng.standard_normal((warps, 16 * steps, 8 * fragments)), dtype)
    c = rng.standard_normal((warps, 16, 8 * fragments)).astype(np.float32)
    group, four = np.arange(32) // 4, np.arange(32) % 4

    def by_warp(make: object) -> np.ndarray:
        assert callable(make)
        return np.concatenate([make(w) for w in range(warps)])

    # The lane maps of the PTX manual, "Matrix Fragments for mma.m16n8k16".
    a_steps = [
        tuple(
            by_warp(lambda w, r=r, h=h, k=k: pair(a[w], group + 8 * r, 16 * k + 8 * h + 2 * four))
            for h in (0, 1)
            for r in (0, 1)
        )
        for k in range(steps)
    ]
    b_registers = [
        by_warp(lambda w, h=h, k=k, n=n: pair(b[w].T, 8 * n + group, 16 * k + 8 * h + 2 * four))
        for n in range(fragments)
        for k in range(steps)
        for h in (0, 1)
    ]
    places = [
        (group + 8 * r, 8 * n + 2 * four + e)
        for n in range(fragments)
        for r in (0, 1)
        for e in (0, 1)
    ]
    c_registers = [by_warp(lambda w, at=at: c[w][at]) for at in places]
    result = machine.matrix.mma(
        lanes, dtype, steps, np.concatenate(a_steps), np.stack(b_registers), np.stack(c_registers)
    )
    exact = from_bits(a, dtype) @ from_bits(b, dtype) + c
    size = np.abs(from_bits(a, dtype)) @ np.abs(from_bits(b, dtype)) + np.abs(c)
    assert len(result) == 4 * fragments
    for at, register in zip(places, result, strict=True):
        assert register.dtype == np.float32
        expected = by_warp(lambda w, at=at: exact[w][at])
        allowed = by_warp(lambda w, at=at: size[w][at]) * 16 * steps * 2.0**-24
        assert (np.abs(register - expected) <= allowed).all()
    assert machine.counters.tensor_operations == 4096 * steps * fragments * warps


def test_products_that_fit_are_exact() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    threes = np.full(32, 0x42004200, np.uint32)  # 3.0 twice
    halves_ = np.full(32, 0x38003800, np.uint32)  # 0.5 twice
    ten = np.full(32, 10, np.float32)
    result = machine.matrix.mma(
        lanes, "f16", 1, np.stack([threes] * 4), np.stack([halves_] * 2), ten
    )
    assert [set(register.tolist()) for register in result] == [{10 + 16 * 1.5}] * 4


def test_part_of_a_warp_cannot_move_matrices() -> None:
    machine = filled(1, 1)
    part = machine.lanes.select(np.arange(16))
    zeros = np.zeros(16, np.uint32)
    with pytest.raises(EmulatorError, match="ldmatrix is executed by part of a warp"):
        machine.matrix.ldmatrix(part, addresses(part, 0)[None], 4, False, (LOAD,))
    with pytest.raises(EmulatorError, match="stmatrix is executed by part of a warp"):
        machine.matrix.stmatrix(part, addresses(part, 0), 1, False, (zeros,), STORE)
    with pytest.raises(EmulatorError, match="mma is executed by part of a warp"):
        machine.matrix.mma(part, "f16", 1, zeros, zeros, zeros.view(np.float32))
