# SPDX-License-Identifier: Apache-2.0
"""Products of a warp for every element type, and mbarriers, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flash_attention.emulator import SCHEDULES
from flash_attention.emulator.machine.numerics import E4M3_VALUES
from flash_attention.user_kernel import Empty
from tests.user_kernel.corpus_kernels import clean, corpus_kernel, floats, integers

FILE = "tensor_cores.cu"
Array = np.ndarray[Any, np.dtype[Any]]


def product(entry: str, a: Array, b: Array, out: Empty, arch: str = "sm_80") -> Array:
    """What a kernel makes of the rows of A and the columns of B."""
    file = FILE if arch == "sm_80" else "hopper.cu"
    words = [np.ascontiguousarray(x).view(np.uint32) for x in (a, b)]
    result = clean(corpus_kernel(file, entry, arch), out, *words, grid=1, block=32)
    return result.arrays[0]


def test_tf32_ignores_the_last_bits() -> None:
    a, b = floats(16, 8), floats(8, 8, seed=1)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for x in (a, b)]
    got = product("mma_tf32", a, b, Empty((16, 8)))
    np.testing.assert_allclose(got, cut[0] @ cut[1].T + 1, rtol=1e-5, atol=1e-6)
    assert np.abs(got - (a.astype(np.float64) @ b.T + 1)).max() > 1e-5


def test_bytes_with_and_without_sign() -> None:
    a = integers(16, 32, largest=256).astype(np.uint8).view(np.int8)
    b = integers(8, 32, seed=1, largest=256).astype(np.uint8)
    got = product("mma_s8", a, b, Empty((16, 8)))
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64).T + 1)


def test_accumulators_of_16_bits() -> None:
    a, b = floats(16, 16).astype(np.float16), floats(8, 16, seed=1).astype(np.float16)
    got = product("mma_f16", a, b, Empty((16, 4), np.uint32)).view(np.float16)
    wanted = (a.astype(np.float64) @ b.T.astype(np.float64) + 1).astype(np.float16)
    np.testing.assert_allclose(got, wanted, rtol=2e-3)
    assert (got == wanted).mean() > 0.9


def test_a_short_product_of_bfloat16() -> None:
    a, b = (floats(n, 8, seed=n).view(np.uint32) >> 16 for n in (16, 8))
    wide = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    got = product("mma_bf16_short", a.astype(np.uint16), b.astype(np.uint16), Empty((16, 8)))
    np.testing.assert_allclose(got, wide[0] @ wide[1].T, rtol=1e-5, atol=1e-6)


def test_floats_of_8_bits() -> None:
    a = integers(16, 32, largest=120).astype(np.uint8)
    b = integers(8, 32, seed=1, largest=0x7C).astype(np.uint8)
    values = (b.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    got = product("mma_e4m3", a, b, Empty((16, 8)), "sm_90a")
    np.testing.assert_allclose(got, E4M3_VALUES[a].astype(np.float64) @ values.T, rtol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_wait_for_the_state_of_an_arrival(schedule: str) -> None:
    x, out = integers(128, largest=1000), np.zeros(128, np.int32)
    kernel = corpus_kernel("hopper.cu", "rotate_behind_tokens", "sm_90a")
    clean(kernel, out, x, 5, grid=1, block=128, schedule=schedule)
    np.testing.assert_array_equal(out, np.roll(x, -5))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_arrive_at_an_mbarrier(schedule: str) -> None:
    x, out = floats(256), np.zeros(256, np.float32)
    kernel = corpus_kernel("hopper.cu", "copies_that_arrive", "sm_90a")
    clean(kernel, out, x, grid=1, block=64, schedule=schedule)
    np.testing.assert_array_equal(out, x[::-1])
