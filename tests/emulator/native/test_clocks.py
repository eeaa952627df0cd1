# SPDX-License-Identifier: Apache-2.0
"""What C does to the clocks is what NumPy does to them."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator.machine.launch import launch as of_a_launch
from ptx_emulator.machine.launch.clocks import Clocks, Released
from ptx_emulator.native import load_native
from tests.emulator.machine.machines import make_machine

CTAS, WARPS = 3, 8


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Clocks, Clocks]:
    """Clocks of which every number is another one, kept by C and by NumPy."""
    if load_native() is None:
        pytest.skip("needs a C compiler")
    native = make_machine(ctas=CTAS, warps=WARPS).clocks
    monkeypatch.setattr(of_a_launch, "load_native", lambda: None)
    plain = make_machine(ctas=CTAS, warps=WARPS).clocks
    rng = np.random.default_rng(3)
    for name in ("views", "seen_by_lanes"):
        values = rng.permutation(getattr(native, name).size).astype(np.int32)
        for clocks in (native, plain):
            getattr(clocks, name)[:] = values.reshape(getattr(clocks, name).shape)
    return native, plain


def random_views(clocks: Clocks, seed: int) -> Released:
    of_a_row = clocks.views[:, 0]
    return np.random.default_rng(seed).integers(0, clocks.views.size, of_a_row.shape, np.int32)


def assert_alike(native: Clocks, plain: Clocks) -> None:
    np.testing.assert_array_equal(native.views, plain.views)
    np.testing.assert_array_equal(native.seen_by_lanes, plain.seen_by_lanes)
    assert native.version == plain.version


@pytest.mark.parametrize(("alone", "whole"), [(False, False), (False, True), (True, False)])
def test_a_wait_that_passed(both: tuple[Clocks, Clocks], alone: bool, whole: bool) -> None:
    native, plain = both
    before, warps = native.views.copy(), np.array([0, 4, 23])
    for clocks in both:
        clocks.acquire_all(warps, random_views(clocks, 7), alone=alone, whole_warp=whole)
    assert_alike(native, plain)
    changed = np.flatnonzero((native.views != before).any(axis=(0, 2)))
    alone_rows = warps + CTAS * WARPS
    assert changed.tolist() == [*([] if alone else warps), *alone_rows]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("warp_id", [0, 5, 23])
def test_what_a_warp_lets_others_see(
    both: tuple[Clocks, Clocks], warp_id: int, alone: bool
) -> None:
    plain = both[1]
    released = [random_views(clocks, 8) for clocks in both]
    before = released[0].copy()
    for clocks, views in zip(both, released, strict=True):
        clocks.let_see(warp_id, alone, views)
    np.testing.assert_array_equal(released[0], released[1])
    wanted = np.maximum(before, plain.known_of_group(warp_id, alone))
    np.testing.assert_array_equal(released[0], wanted)
    assert (released[0] != before).any()


def test_new_epochs(both: tuple[Clocks, Clocks]) -> None:
    native, plain = both
    before, warps = native.seen.copy(), np.array([2, 3, 19])
    for clocks in both:
        clocks.tick_warps(warps)
    assert_alike(native, plain)
    of_cta = warps // CTAS
    assert (native.seen[warps, of_cta] == before[warps, of_cta] + 1).all()
