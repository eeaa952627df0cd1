# SPDX-License-Identifier: Apache-2.0
"""`assert_clean`, which tests of kernels get from the installed package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptx_emulator import Empty, UserKernel

KERNELS = Path(__file__).resolve().parents[2] / "examples" / "kernels"
Clean = Callable[..., Any]


def test_a_kernel_without_a_mistake_gives_its_results(assert_clean: Clean) -> None:
    x = np.arange(64, dtype=np.float32)
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    result = assert_clean(UserKernel.of_source(source), x, grid=1, block=64)
    np.testing.assert_array_equal(x, 2 * np.arange(64))  # not once for every schedule
    np.testing.assert_array_equal(result.arrays[0], x)


def test_a_race_fails_the_test_with_its_line(assert_clean: Clean) -> None:
    x = np.ones(1024, np.float32)
    with pytest.raises(AssertionError) as failed:
        assert_clean(KERNELS / "block_sum.cu", Empty(4), x, grid=4, block=256)
    said = str(failed.value)
    assert said.startswith("block_sum, lockstep: 2 findings\n  [race] block_sum PTX line")
    assert "block_sum.cu:10  if (t < step) partial[t] += partial[t + step];" in said
    assert "how to fix it (race)" in said


def test_a_launch_that_does_not_end_fails_the_test(assert_clean: Clean) -> None:
    x, options = np.ones(512, np.float32), {"grid": 2, "block": 256, "arch": "sm_90"}
    with pytest.raises(AssertionError, match="bulk_copy, random: bulk_copy cannot go on"):
        assert_clean(KERNELS / "bulk_copy.cu", Empty(512), x, schedules=["random"], **options)


ONE_ORDER = """
__global__ void last(int* out, int* flag) {
  if (threadIdx.x == 0) atomicExch(flag, 1);
  if (threadIdx.x == 32 && atomicAdd(flag, 0) == 0) out[100] = 1;
}
"""


def test_every_order_of_the_warps_is_tried(assert_clean: Clean) -> None:
    out, flag = np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernel = UserKernel.of_source(ONE_ORDER)
    with pytest.raises(AssertionError, match="out-of-bounds"):
        assert_clean(kernel, out, flag, grid=1, block=64, schedules=["lockstep", "depth-first"])
