# SPDX-License-Identifier: Apache-2.0
"""Every kind of memory against NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, Empty, UserKernel
from ptx_emulator.errors import LaunchError
from tests.user_kernel.corpus_kernels import clean, corpus_kernel, floats, integers

FILE = "memory.cu"
SWAP = """
__device__ int told[64];
extern "C" __global__ void swap(int* out) {
  told[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = told[threadIdx.x ^ 32];
}
"""


def test_a_transpose_with_blocks_of_two_dimensions() -> None:
    x = floats(40, 50)
    result = clean(
        corpus_kernel(FILE, "transpose"), Empty((50, 40)), x, 50, 40, grid=(4, 3), block=(16, 16)
    )
    np.testing.assert_array_equal(result.arrays[0], x.T)


def test_three_dimensions_of_grid_and_block() -> None:
    result = clean(
        corpus_kernel(FILE, "box"), Empty((6, 6, 10), np.int32), grid=(2, 2, 3), block=(5, 3, 2)
    )
    z, y, x = np.indices((6, 6, 10))
    np.testing.assert_array_equal(result.arrays[0], x + 100 * y + 10000 * z)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_histogram_in_shared_memory(schedule: str) -> None:
    x = integers(700, largest=256).astype(np.uint8)
    bins = np.zeros(64, np.uint32)
    clean(corpus_kernel(FILE, "histogram"), bins, x, 700, grid=3, block=90, schedule=schedule)
    np.testing.assert_array_equal(bins, np.bincount(x % 64, minlength=64))


def test_constants_and_variables_of_the_module() -> None:
    x, out = floats(100), np.zeros(100, np.float32)
    kernel = corpus_kernel(FILE, "stencil")
    result = clean(kernel, out, x, 100, grid=2, block=64)
    np.testing.assert_allclose(out, np.convolve(x, [0.1, 0.2, 0.4, 0.2, 0.1], "same"), atol=1e-6)
    assert result.variables["visits"].view(np.int32)[0] == 100
    other = np.array([0, 0, 1, 0, 0], np.float32)
    clean(kernel, out, x, 100, grid=2, block=64, variables={"filter": other})
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_exchange_data_in_a_variable(schedule: str) -> None:
    out = np.zeros(64, np.int32)
    clean(UserKernel.of_source(SWAP, "swap"), out, grid=1, block=64, schedule=schedule)
    np.testing.assert_array_equal(out, np.arange(64) ^ 32)


def test_arrays_of_a_thread() -> None:
    x, out = integers(40, 8, largest=1000), np.zeros((40, 8), np.int32)
    clean(corpus_kernel(FILE, "local_sort"), out, x, grid=1, block=40)
    np.testing.assert_array_equal(out, np.sort(x, axis=1))


def test_a_pointer_to_shared_or_global_memory() -> None:
    x, out = floats(64), np.zeros(64, np.float32)
    clean(corpus_kernel(FILE, "either_pointer"), out, x, 40, grid=1, block=64)
    thread = np.arange(64)
    wanted = np.where(thread < 40, 2, 1) * np.roll(x, -1) + 10 * (1 + thread % 4)
    np.testing.assert_allclose(out, wanted, rtol=1e-6)


class Table(ctypes.Structure):
    _fields_ = (("values", ctypes.c_int * 16), ("scale", ctypes.c_float))


def test_a_structure_that_is_indexed() -> None:
    values, index, out = np.arange(16) ** 2, integers(32, largest=16), np.zeros(32, np.float32)
    table = Table((ctypes.c_int * 16)(*values.tolist()), 0.5)
    clean(corpus_kernel(FILE, "parameter_table"), out, index, table, grid=1, block=32)
    np.testing.assert_array_equal(out, values[index] / 2)


def test_a_switch_of_many_cases() -> None:
    which, out, t = integers(96, largest=10), np.zeros(96, np.int32), np.arange(96)
    clean(corpus_kernel(FILE, "choose"), out, which, grid=1, block=96)
    arms = [t * 3, t - 7, t ^ 21, t << 2, -t, t // 3, t % 5, t * t, np.full(96, 99), t]
    np.testing.assert_array_equal(out, np.stack(arms)[which, t])


def test_masks_of_lanes_and_a_clock() -> None:
    out = np.zeros((64, 4), np.uint32)
    clean(corpus_kernel(FILE, "lanes"), out, grid=1, block=64)
    bit = np.uint64(1) << np.arange(64, dtype=np.uint64) % 32
    np.testing.assert_array_equal(out[:, 0], bit - 1)
    np.testing.assert_array_equal(out[:, 1], 0xFFFFFFFF - (bit - 1))
    np.testing.assert_array_equal(out[:, 2], bit)
    np.testing.assert_array_equal(out[:, 3], np.ones(64))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_last_block_adds_up(schedule: str) -> None:
    x, out, ticket = integers(4, 64), np.zeros(1, np.int32), np.zeros(1, np.uint32)
    kernel = corpus_kernel(FILE, "last_block_sum")
    partial = Empty(4, np.int32)
    clean(kernel, out, partial, ticket, x, grid=4, block=64, schedule=schedule)
    assert out[0] == x.sum()


def test_printf_prints_and_assert_stops() -> None:
    x = np.array([0.5, 1.25, -3.0], np.float32)
    kernel = corpus_kernel(FILE, "speak")
    result = clean(kernel, x, 3, grid=1, block=32)
    assert result.printed == "0 of 3: 0.50 even%\n1 of 3: 1.25 odd%\n2 of 3: -3.00 even%\n"
    with pytest.raises(LaunchError, match=r"memory\.cu:\d+: assertion `n < 100` failed in CTA 0"):
        kernel.run(x, 100, grid=1, block=32)
