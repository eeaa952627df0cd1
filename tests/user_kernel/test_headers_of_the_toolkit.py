# SPDX-License-Identifier: Apache-2.0
"""Atomics of 16-bit floats and of vectors, CUB, and policies of the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptx_emulator import UserKernel
from ptx_emulator.machine.arithmetic.numerics import bf16_to_f32
from ptx_emulator.user_kernel.compiling import toolkit_headers

pytestmark = pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
Clean = Callable[..., Any]

ATOMICS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__global__ void add(__half* half, __half2* pair, __nv_bfloat16* brain, float4* four, float4* old) {
  int t = threadIdx.x;
  atomicAdd(half + t % 3, __float2half(t));
  atomicAdd(pair, __floats2half2_rn(1, t % 2));
  atomicAdd(brain + t % 2, __float2bfloat16(2));
  if (t < 2) old[t] = atomicAdd(four, make_float4(1, 2, 3, t));
}
"""


def test_atomics_of_16_bits_and_of_vectors(assert_clean: Clean) -> None:
    half, pair = np.zeros(3, np.float16), np.zeros(2, np.float16)
    brain, four = np.zeros(2, np.uint16), np.full(4, 10, np.float32)
    old = np.zeros((2, 4), np.float32)
    kernel = UserKernel.of_source(ATOMICS, arch="sm_90")
    assert_clean(kernel, half, pair, brain, four, old, grid=1, block=32)
    np.testing.assert_array_equal(half, [sum(range(first, 32, 3)) for first in range(3)])
    np.testing.assert_array_equal(pair, [32, 16])
    np.testing.assert_array_equal(bf16_to_f32(brain), [32, 32])
    np.testing.assert_array_equal(four, [12, 14, 16, 11])
    np.testing.assert_array_equal(old[:, :3], [[10, 10, 10], [11, 12, 13]])


SORT = """
#include <cub/block/block_radix_sort.cuh>
__global__ void sort(int* x) {
  using Sort = cub::BlockRadixSort<int, 64, 2>;
  __shared__ typename Sort::TempStorage storage;
  int mine[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
  Sort(storage).Sort(mine);
  x[2 * threadIdx.x] = mine[0];
  x[2 * threadIdx.x + 1] = mine[1];
}
"""


def test_cub_sorts(assert_clean: Clean) -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 128).astype(np.int32)
    wanted = np.sort(x)
    assert_clean(UserKernel.of_source(SORT), x, grid=1, block=64, schedules=["lockstep"])
    np.testing.assert_array_equal(x, wanted)


POLICIES = """
__global__ void hinted(float* out, const float* in) {
  unsigned long long keep;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  float x;
  asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;"
               : "=f"(x) : "l"(in + threadIdx.x), "l"(keep));
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], 64;" :: "l"(in));
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;"
               :: "l"(out + threadIdx.x), "f"(x * 2), "l"(keep) : "memory");
  asm volatile("red.global.add.L2::cache_hint.f32 [%0], %1, %2;"
               :: "l"(out + 32), "f"(1.0f), "l"(keep) : "memory");
}
"""


def test_policies_of_the_cache_change_no_result(assert_clean: Clean) -> None:
    x, out = np.arange(32, dtype=np.float32), np.zeros(33, np.float32)
    assert_clean(UserKernel.of_source(POLICIES, arch="sm_90"), out, x, grid=1, block=32)
    np.testing.assert_array_equal(out, [*(2 * x), 32])
