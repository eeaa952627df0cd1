# SPDX-License-Identifier: Apache-2.0
"""Reductions, votes and scans against NumPy, under every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, Empty
from tests.user_kernel.corpus_kernels import clean, corpus_kernel, floats, integers

FILE = "reductions.cu"
ALL = 0xFFFFFFFF


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tree_in_dynamic_shared_memory(schedule: str) -> None:
    x, n = floats(500), 500
    kernel = corpus_kernel(FILE, "tree_sum")
    (sums, _) = clean(
        kernel, Empty(4), x, n, grid=4, block=128, dynamic_smem=512, schedule=schedule
    ).arrays
    wanted = np.pad(x, (0, 12)).reshape(4, 128).astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(sums, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shuffles_down_a_warp(schedule: str) -> None:
    x = floats(1000)
    out = np.zeros(2, np.float32)
    clean(corpus_kernel(FILE, "shuffle_sum"), out, x, 1000, grid=2, block=96, schedule=schedule)
    block = np.arange(1000) // 96 % 2
    wanted = [x[block == b].astype(np.float64).sum() for b in range(2)]
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)


def test_halves_of_a_warp_shuffle_by_themselves() -> None:
    x = integers(64, largest=1000)
    out = np.zeros(64, np.int32)
    clean(corpus_kernel(FILE, "half_warp_max"), out, x, grid=1, block=64)
    np.testing.assert_array_equal(out, x.reshape(4, 16).max(axis=1).repeat(16))


def test_atomics_of_blocks_that_are_no_multiple_of_a_warp() -> None:
    x, total = integers(333), np.zeros(1, np.int32)
    clean(corpus_kernel(FILE, "atomic_sum"), total, x, 333, grid=7, block=50)
    assert total[0] == x.sum()


def test_members_of_a_redux_are_those_of_the_mask() -> None:
    x, out = integers(32), np.zeros(32, np.int32)
    clean(corpus_kernel(FILE, "redux_by_parity"), out, x, grid=1, block=32)
    np.testing.assert_array_equal(out, np.tile([x[::2].sum(), x[1::2].sum()], 16))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("threads", [128, 70])
def test_votes_at_a_barrier(threads: int, schedule: str) -> None:
    x, out = integers(threads), np.zeros(threads, np.int32)
    clean(corpus_kernel(FILE, "votes"), out, x, grid=1, block=threads, schedule=schedule)
    wanted = (x > 0).sum() + 1000 * (x > 8).any() + 2000 * (x >= 0).all()
    np.testing.assert_array_equal(out, np.full(threads, wanted))


@pytest.mark.parametrize("same", [True, False])
def test_ballots_and_matches(same: bool) -> None:
    x = np.full(32, 7, np.int32) if same else integers(32)
    out = np.zeros((32, 4), np.uint32)
    clean(corpus_kernel(FILE, "ballots"), out, x, grid=1, block=32)
    bits = 1 << np.arange(32, dtype=np.uint64)
    np.testing.assert_array_equal(out[:, 0], np.full(32, bits[x & 1 == 1].sum()))
    np.testing.assert_array_equal(out[:, 1], [bits[x == value].sum() for value in x])
    np.testing.assert_array_equal(out[:, 2], np.full(32, (ALL + 1) % (1 << 32) if same else 0))
    np.testing.assert_array_equal(out[:, 3], np.arange(32))


def test_an_inclusive_scan() -> None:
    x, out = integers(256), np.zeros(256, np.int32)
    clean(corpus_kernel(FILE, "inclusive_scan"), out, x, grid=1, block=256)
    np.testing.assert_array_equal(out, np.cumsum(x))


def test_the_last_warp_has_fewer_lanes() -> None:
    x, out = floats(45), np.zeros(2, np.float32)
    clean(corpus_kernel(FILE, "ragged_max"), out, x, 45, grid=1, block=45)
    np.testing.assert_array_equal(out, [x[:32].max(), x[32:].max()])
