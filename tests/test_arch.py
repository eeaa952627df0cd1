# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flash_attention.arch import ARCHES, DEFAULT_ARCH, get_arch
from flash_attention.errors import UnsupportedError


def test_capabilities_are_read_from_names() -> None:
    assert ARCHES["sm_80"].capability == (8, 0)
    assert ARCHES["sm_120"].capability == (12, 0)
    assert get_arch("sm_80") is DEFAULT_ARCH


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'sm_75'.*sm_80.*sm_120"):
        get_arch("sm_75")


def test_registers_are_handed_out_in_units_of_a_warp() -> None:
    arch = ARCHES["sm_90"]
    assert arch.occupancy_limits(128, 0, 168)["registers"] == 3
    assert arch.occupancy_limits(128, 0, 169)["registers"] == 2
    assert arch.occupancy_limits(256, 0, 128)["registers"] == 2


def test_each_resource_can_be_the_limit() -> None:
    arch = ARCHES["sm_86"]
    assert arch.ctas_per_sm(threads=128, smem_bytes=0) == 12
    assert arch.ctas_per_sm(threads=32, smem_bytes=0) == 16
    assert arch.ctas_per_sm(threads=128, smem_bytes=48 * 1024) == 2
    assert arch.ctas_per_sm(threads=128, smem_bytes=0, registers=255) == 2
