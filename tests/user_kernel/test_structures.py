# SPDX-License-Identifier: Apache-2.0
"""Structures of pointers, numbers and tensor maps, by value and in global memory; grid.sync()."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import SCHEDULES, Empty, Pointer, Struct, Tensor, UserKernel
from ptx_emulator.errors import LaunchError, UnsupportedError
from ptx_emulator.user_kernel.compiling import toolkit_headers
from tests.user_kernel.corpus_kernels import clean

SUM = """
struct Range { short first; double scale; };
struct Params { float* out; const float* in; Range range; int n; char tag; };
__global__ void scaled(const __grid_constant__ Params p, const Params* other) {
  int i = threadIdx.x;
  if (i < p.n) p.out[i] = p.in[i + p.range.first] * p.range.scale + p.tag + other->in[i] * other->n;
}
"""


def test_a_structure_of_pointers_and_numbers() -> None:
    x, y = np.arange(8, dtype=np.float32), np.arange(4, dtype=np.float32)
    scale = Struct(np.int16(3), np.float64(0.5))
    given = Struct(Empty(4), x, scale, 4, np.int8(7))
    other = Pointer(0, np.int32(0), y, Struct(np.int16(0), np.float64(0)), 10, np.int8(0))
    result = clean(UserKernel.of_source(SUM), given, other, grid=1, block=32)
    np.testing.assert_array_equal(result.arrays[0], x[3:7] / 2 + 7 + 10 * y)


def test_a_structure_that_does_not_fit_is_refused() -> None:
    kernel = UserKernel.of_source(SUM)
    with pytest.raises(UnsupportedError, match="a structure of 16 bytes, and the parameter has 40"):
        kernel.run(Struct(Empty(4), 1.0), Pointer(), grid=1, block=32)
    with pytest.raises(UnsupportedError, match="a structure is passed from Python, as a Struct"):
        kernel.run(Empty(4), Pointer(), grid=1, block=32)
    with pytest.raises(UnsupportedError, match="a field of a structure is 'x'; pass an array"):
        kernel.run(Struct("x"), Pointer(), grid=1, block=32)


BOXES = """
#include <cuda.h>
struct Params { int rows; CUtensorMap from; float* out; };
__global__ void boxes(const __grid_constant__ Params p, const CUtensorMap* maps) {
  __shared__ alignas(128) float tile[2][8 * 8];
  __shared__ alignas(8) unsigned long long arrived;
  unsigned bar = __cvta_generic_to_shared(&arrived);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" :: "r"(bar) : "memory");
    for (int i = 0; i < 2; ++i) {
      const CUtensorMap* map = i ? maps + 1 : &p.from;
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                   " [%0], [%1, {%3, %4}], [%2];" ::
                   "r"((unsigned)__cvta_generic_to_shared(tile[i])), "l"(map), "r"(bar),
                   "r"(8), "r"(p.rows) : "memory");
    }
  }
  __syncthreads();
  asm volatile("{.reg .pred p;\\nW: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;\\n@!p bra W;}"
               :: "r"(bar) : "memory");
  for (int i = threadIdx.x; i < 64; i += blockDim.x) p.out[i] = tile[0][i] - tile[1][i];
}
"""


def test_tensor_maps_in_a_structure_and_in_global_memory() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 32, 16)).astype(np.float32)
    maps = Pointer(Tensor(b, (8, 8)), Tensor(c, (8, 8)))
    kernel = UserKernel.of_source(BOXES, arch="sm_90a")
    result = clean(kernel, Struct(5, Tensor(a, (8, 8)), Empty((8, 8))), maps, grid=1, block=32)
    np.testing.assert_array_equal(result.arrays[1], (a - c)[5:13, 8:])


def test_maps_are_aligned_as_the_parameter_says() -> None:
    """Headers of CUDA 13 align them to 128 bytes."""
    a, b, c = np.random.default_rng(1).normal(size=(3, 32, 16)).astype(np.float32)
    newer = BOXES.replace("#include <cuda.h>", "struct alignas(128) CUtensorMap { char b[128]; };")
    maps = Pointer(Tensor(b, (8, 8)), Tensor(c, (8, 8)))
    kernel = UserKernel.of_source(newer, arch="sm_90a")
    result = clean(kernel, Struct(5, Tensor(a, (8, 8)), Empty((8, 8))), maps, grid=1, block=32)
    np.testing.assert_array_equal(result.arrays[1], (a - c)[5:13, 8:])


def test_a_tensor_may_be_a_view_of_an_array_that_is_passed_too() -> None:
    x = np.random.default_rng(2).normal(size=(32, 2, 16)).astype(np.float32)
    wanted = (x[:, 1] - x[:, 0])[5:13, 8:]
    kernel = UserKernel.of_source(BOXES, arch="sm_90a")
    maps = Pointer(Tensor(x[:, 1], (8, 8)), Tensor(x[:, 0], (8, 8)))
    clean(kernel, Struct(5, Tensor(x[:, 1], (8, 8)), x), maps, grid=1, block=32)
    np.testing.assert_array_equal(x[:2].reshape(8, 8), wanted)
    with pytest.raises(UnsupportedError, match="the last axis of argument 0 is not contiguous"):
        kernel.run(Struct(5, Tensor(x.T, (8, 8)), x), maps, grid=1, block=32)


ADDITION = """
#include <cuda.h>
__global__ void add(const __grid_constant__ CUtensorMap map, int row) {
  __shared__ alignas(128) float tile[8 * 8];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) tile[i] = i;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x) return;
  unsigned from = __cvta_generic_to_shared(tile);
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(from), "r"(4), "r"(row) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_boxes_are_added_to_a_tensor(schedule: str) -> None:
    x = np.ones((16, 16), np.float32)
    kernel = UserKernel.of_source(ADDITION, arch="sm_90a")
    clean(kernel, Tensor(x, (8, 8)), 12, grid=3, block=32, schedule=schedule)
    wanted = np.ones((16, 16), np.float32)
    wanted[12:, 4:12] += 3 * np.arange(32).reshape(4, 8)
    np.testing.assert_array_equal(x, wanted)


def test_a_view_of_another_type_has_elements_of_its_own() -> None:
    base = np.zeros(16 * 32 * 4, np.uint8)
    x = base.view(np.float32).reshape(16, 32)[:, :16]
    clean(UserKernel.of_source(ADDITION, arch="sm_90a"), Tensor(x, (8, 8)), 8, grid=1, block=32)
    wanted = np.zeros((16, 16), np.float32)
    wanted[8:16, 4:12] = np.arange(64).reshape(8, 8)
    np.testing.assert_array_equal(x, wanted)


def test_additions_to_a_tensor_of_other_types_are_refused() -> None:
    kernel = UserKernel.of_source(ADDITION, arch="sm_90a")
    with pytest.raises(LaunchError, match="a tensor of int32 are not emulated, those to one of"):
        kernel.run(Tensor(np.zeros((16, 16), np.int32), (8, 8)), 0, grid=1, block=32)


GRID = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(int* out, int* parts) {
  auto grid = cg::this_grid();
  if (threadIdx.x == 0) parts[blockIdx.x] = blockIdx.x + 1;
  grid.sync();
  int total = 0;
  for (int i = 0; i < gridDim.x; ++i) total += parts[i];
  grid.sync();
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
  grid.sync();
  out[grid.thread_rank()] = parts[(blockIdx.x + 1) % gridDim.x] + grid.thread_rank();
}
"""


@pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_grid_waits_for_all_its_blocks(schedule: str) -> None:
    out, parts = np.zeros(4 * 64, np.int32), np.zeros(4, np.int32)
    kernel = UserKernel.of_source(GRID)
    clean(kernel, out, parts, grid=4, block=64, schedule=schedule)
    np.testing.assert_array_equal(out, np.arange(256) + 10)
