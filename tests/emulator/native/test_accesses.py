# SPDX-License-Identifier: Apache-2.0
"""Counts and offsets of random accesses, natively and by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator.machine.lanes import WARP_SIZE
from ptx_emulator.machine.launch.counters import bank_wavefronts, count_sectors
from ptx_emulator.native import Native, load_native

WARPS = 5
LANES = np.arange(WARPS * WARP_SIZE)


@pytest.fixture
def native() -> Native:
    loaded = load_native()
    if loaded is None:
        pytest.skip("needs a C compiler")
    return loaded


def masks() -> list[NDArray[Any] | None]:
    rng = np.random.default_rng(1)
    some = rng.random(LANES.size) < 0.6
    some[2 * WARP_SIZE : 3 * WARP_SIZE] = False
    return [None, some]


@pytest.mark.parametrize("mask", masks(), ids=["all", "some"])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("span", [64, 1024, 1 << 15])
def test_wavefronts(native: Native, nbytes: int, span: int, mask: Any) -> None:
    rng = np.random.default_rng(span)
    where = (rng.integers(0, span, LANES.size) * nbytes).astype(np.uint32)
    warp, lane, out = LANES // WARP_SIZE, LANES % WARP_SIZE, np.zeros(3, np.int64)
    assert native.wavefronts(where, mask, warp, lane, nbytes, out) >= 0
    by_warp = None if mask is None else mask.reshape(-1, WARP_SIZE)
    site = bank_wavefronts(where.reshape(-1, WARP_SIZE), by_warp, nbytes)
    assert out.tolist() == [site.requests, site.wavefronts, site.ideal]


@pytest.mark.parametrize("mask", masks(), ids=["all", "some"])
@pytest.mark.parametrize("nbytes", [1, 4, 16, 64])
@pytest.mark.parametrize("span", [8, 40, 1 << 15])
def test_sectors(native: Native, nbytes: int, span: int, mask: Any) -> None:
    rng = np.random.default_rng(span)
    where = (rng.integers(0, span, LANES.size) * nbytes + (1 << 44)).astype(np.uint64)
    out = np.zeros(4, np.int64)
    assert native.sectors(where, mask, LANES // WARP_SIZE, nbytes, out) >= 0
    by_warp = None if mask is None else mask.reshape(-1, WARP_SIZE)
    rows = where.astype(np.int64).reshape(-1, WARP_SIZE)
    active = LANES.size if mask is None else int(mask.sum())
    requests = WARPS if by_warp is None else int(by_warp.any(axis=1).sum())
    wanted = [requests, *count_sectors(rows, by_warp, nbytes), active * nbytes]
    assert out.tolist() == wanted


@pytest.mark.parametrize("mask", masks(), ids=["all", "some"])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_offsets(native: Native, dtype: Any, mask: Any) -> None:
    rng = np.random.default_rng(0)
    where = rng.integers(500, 1 << 20, LANES.size).astype(dtype)
    starts = rng.integers(0, 1 << 40, LANES.size)
    out, bounds = np.zeros(LANES.size, np.int64), np.zeros(3, np.int64)
    count = native.offsets(where, mask, 1000, starts, 7, out, bounds)
    active = np.ones(LANES.size, bool) if mask is None else mask
    offsets = where.astype(np.int64) - 1000
    assert count == active.sum()
    chosen = offsets[active]
    bits = int(np.bitwise_or.reduce(chosen))
    assert bounds.tolist() == [chosen.min(), chosen.max(), bits]
    assert (out == np.where(active, offsets, 0) + starts + 7).all()


def test_arrays_with_gaps_are_left_to_numpy(native: Native) -> None:
    spread = np.broadcast_to(np.uint32(8), LANES.size)
    assert native.wavefronts(spread, None, LANES, LANES, 4, np.zeros(3, np.int64)) < 0
