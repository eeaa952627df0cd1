# SPDX-License-Identifier: Apache-2.0
"""Arrays that share memory, and arrays of which the kernel leaves a part unwritten."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_emulator import Empty, UserKernel, UserRun

SOURCE = """
extern "C" __global__ void shift(const float* from, float* to, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i] + 1;
}
"""


def shift(source: Any, target: Any, n: int, checks: bool = True) -> UserRun:
    kernel = UserKernel.of_source(SOURCE)
    return kernel.run(source, target, n, grid=2, block=32, names=["from", "to", "n"], checks=checks)


def test_views_of_one_array_are_one_memory() -> None:
    whole = np.arange(72, dtype=np.float32)
    expected = whole.copy()
    expected[8:72] = expected[:64] + 1
    result = shift(whole[:64], whole[8:], 64)
    kinds = {finding.kind for finding in result.findings}
    assert {"race", "cta-write-conflict", "intra-warp-race"} >= kinds > set()
    assert {finding.detail.split(" that ")[0] for finding in result.findings} == {
        "store of bytes of from = to"
    }
    assert np.array_equal(whole, expected)  # as all threads load before the first one stores


def test_neighbouring_views_do_not_meet() -> None:
    whole = np.arange(128, dtype=np.float32)
    result = shift(whole[:64], whole[64:], 64)
    assert result.findings == ()
    assert np.array_equal(whole[64:], np.arange(1, 65))


def test_elements_that_were_never_written() -> None:
    ramp = np.arange(64, dtype=np.float32)
    assert shift(ramp, Empty(64), 64).unwritten == {}
    assert shift(ramp, Empty(64), 50).unwritten == {"to": 14}
    assert shift(ramp, Empty(100, np.float64), 64).unwritten == {"to": 68}
    assert shift(ramp, np.zeros(64, np.float32), 50).unwritten == {}
    assert shift(ramp, Empty(64), 50, checks=False).unwritten == {}
