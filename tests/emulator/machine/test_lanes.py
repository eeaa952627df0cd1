# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from ptx_emulator.machine.lanes import SHARED_BASE, Lanes


def test_a_warp_of_all_ctas_is_a_slice() -> None:
    lanes = Lanes(num_ctas=3, warps_per_cta=4, shared_stride=2048)
    second = lanes.warps_of(1, 1)
    assert second.index == slice(96, 192)
    assert second.whole_warps
    assert second.num_warps == 3
    assert set(second.warp) == {1}
    assert list(second.cta[::32]) == [0, 1, 2]
    assert list(second.warps) == [3, 4, 5]
    assert list(second.shared_base[::32]) == [c * 2048 - SHARED_BASE for c in range(3)]


def test_slices_are_remembered_and_whole_sets_become_slices() -> None:
    lanes = Lanes(2, 2, 1024)
    assert lanes.select(slice(0, 64)) is lanes.select(slice(0, 64))
    shuffled = np.random.default_rng(0).permutation(64)
    assert lanes.gather(shuffled) is lanes.select(slice(0, 64))
    assert lanes.all.is_all


def test_parts_of_warps_are_not_whole() -> None:
    lanes = Lanes(1, 2, 1024)
    odd = lanes.part(lanes.all, lanes.all.lane % 2 == 1)
    assert not odd.whole_warps
    assert odd.key is None
    assert list(odd.warps) == [0, 1]
    assert odd.count == 32
    assert lanes.part(odd, None) is odd
