# SPDX-License-Identifier: Apache-2.0
"""Products of a warp for every element type, and mbarriers, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, Empty, Tensor, UserKernel
from ptx_emulator.errors import UnsupportedError
from ptx_emulator.machine.arithmetic.numerics import E4M3_VALUES
from ptx_emulator.user_kernel.compiling import toolkit_headers
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


WMMA = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry multiply(.param .u64 c, .param .u64 a, .param .u64 b)
{
.reg .b32 %r<32>;
.reg .f32 %f<16>;
.reg .b64 %rd<8>;
ld.param.u64 %rd0, [c];
ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
mov.u32 %r0, 16;
wmma.load.a.sync.aligned.row.m16n16k16.f16 {A}, [%rd1], %r0;
wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {B}, [%rd2], %r0;
wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {C}, [%rd0], %r0;
wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {C}, {A}, {B}, {C};
wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd0], {C}, %r0;
ret;
}
"""


def test_wmma_adds_a_product_to_a_matrix() -> None:
    lists = {
        "{A}": ", ".join(f"%r{i}" for i in range(1, 9)),
        "{B}": ", ".join(f"%r{i}" for i in range(9, 17)),
        "{C}": ", ".join(f"%f{i}" for i in range(8)),
    }
    text = WMMA
    for name, registers in lists.items():
        text = text.replace(name, f"{{{registers}}}")
    a, b = floats(16, 16).astype(np.float16), floats(16, 16, seed=1).astype(np.float16)
    c = floats(16, 16, seed=2)
    wanted = c + a.astype(np.float64) @ b.astype(np.float64).T
    clean(UserKernel.of_ptx(text), c, a, b, grid=1, block=32)
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)


HALF_HEADER = """
#include <cuda_fp16.h>
__global__ void k(__half* out, const __half* in) {
  int i = threadIdx.x;
  out[2 * i] = hexp(in[i]);
  __half2 pair = __halves2half2(in[i], in[i ^ 1]);
  pair = __hfma2(pair, pair, pair);
  out[2 * i + 1] = __hgt(in[i], __float2half(0.0f)) ? __low2half(pair) : __high2half(pair);
}
"""


@pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
def test_the_header_of_half_precision() -> None:
    x, out = floats(32).astype(np.float16), np.zeros((32, 2), np.float16)
    clean(UserKernel.of_source(HALF_HEADER), out, x, grid=1, block=32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out[:, 0], np.exp(wide), rtol=2e-3)
    chosen = np.where(x > 0, wide, wide.reshape(-1, 2)[:, ::-1].reshape(-1))
    np.testing.assert_array_equal(out[:, 1], (chosen * chosen + chosen).astype(np.float16))


GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(int* out, const int* in) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  int sum = cg::reduce(tile, in[block.thread_rank()], cg::plus<int>());
  block.sync();
  out[block.thread_rank()] = sum;
}
"""


@pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
def test_cooperative_groups() -> None:
    x, out = integers(64), np.zeros(64, np.int32)
    clean(UserKernel.of_source(GROUPS), out, x, grid=1, block=64)
    np.testing.assert_array_equal(out, x.reshape(4, 16).sum(axis=1).repeat(16))


@pytest.mark.parametrize(("row", "column"), [(0, 0), (5, 12), (28, 36)])
def test_a_tensor_is_moved_in_boxes(row: int, column: int) -> None:
    x, out = floats(32, 48), np.zeros((8, 16), np.float32)
    kernel = corpus_kernel("hopper.cu", "tensor_tile", "sm_90a")
    clean(kernel, out, Tensor(x, box=(8, 16)), row, column, grid=1, block=128)
    padded = np.pad(x, ((0, 8), (0, 16)))
    np.testing.assert_array_equal(out, padded[row : row + 8, column : column + 16])


def test_a_tensor_needs_a_tensor_map() -> None:
    kernel = corpus_kernel("hopper.cu", "mma_e4m3", "sm_90a")
    tensor = Tensor(floats(8, 16), box=(8, 16))
    with pytest.raises(UnsupportedError, match="a CUtensorMap has 128"):
        kernel.run(Empty(128), tensor, Empty(64, np.uint32), grid=1, block=32)


WMMA_OF = """
#include <mma.h>
using namespace nvcuda;
template <class Element, class In, class Sum, int M, int K>
__global__ void multiply(Sum* out, const In* a, const In* b) {
  wmma::fragment<wmma::matrix_a, M, M, K, Element, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, M, M, K, Element, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, M, M, K, Sum> sums;
  wmma::load_matrix_sync(left, a, K);
  wmma::load_matrix_sync(right, b, K);
  wmma::fill_fragment(sums, (Sum)1);
  wmma::mma_sync(sums, left, right, sums);
  wmma::store_matrix_sync(out, sums, M, wmma::mem_row_major);
}
"""


@pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
@pytest.mark.parametrize(
    ("types", "shape", "dtype", "sums"),
    [
        ("wmma::precision::tf32, float, float", (16, 8), np.float32, np.float32),
        ("signed char, signed char, int", (16, 16), np.int8, np.int32),
        ("double, double, double", (8, 4), np.float64, np.float64),
    ],
)
def test_wmma_of_other_types(
    types: str, shape: tuple[int, int], dtype: type[np.generic], sums: type[np.generic]
) -> None:
    rows, depth = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-99, 99, shape).astype(dtype) for _ in range(2))
    kernel = UserKernel.of_source(WMMA_OF, f"multiply<{types}, {rows}, {depth}>")
    result = clean(kernel, Empty((rows, rows), sums), a, b, grid=1, block=32)
    np.testing.assert_array_equal(result.arrays[0], a.astype(np.int64) @ b.T.astype(np.int64) + 1)
