// SPDX-License-Identifier: Apache-2.0
// needs: a CUDA toolkit
// Cooperative groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

// run: <<<2, 64>>>(out=Empty(128))
// gives: (out == np.tile(np.arange(64)[::-1], 2)).all()
extern "C" __global__ void block_sync(float* out) {
  __shared__ float data[64];
  auto block = cg::this_thread_block();
  data[block.thread_rank()] = block.thread_rank();
  block.sync();
  out[blockIdx.x * 64 + threadIdx.x] = data[63 - threadIdx.x];
}

// run: <<<1, 64>>>(out=Empty(64))
// gives: (out == np.repeat([28, 92, 156, 220, 284, 348, 412, 476], 8)).all()
extern "C" __global__ void tiles_of_eight(float* out) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  float sum = threadIdx.x;
  for (int d = tile.size() / 2; d > 0; d /= 2) sum += tile.shfl_xor(sum, d);
  out[threadIdx.x] = sum;
}

// run: <<<1, 64>>>(out=Empty(64))
// gives: (out == np.repeat([496, 1520], 32)).all()
extern "C" __global__ void reduce_of_a_warp(float* out) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  out[threadIdx.x] = cg::reduce(warp, (float)threadIdx.x, cg::plus<float>());
}

// run: <<<1, 64>>>(count=ints(1))
// gives: count[0] == 22
extern "C" __global__ void lanes_that_are_together(int* count) {
  if (threadIdx.x % 3 == 0) {
    auto active = cg::coalesced_threads();
    if (active.thread_rank() == 0) atomicAdd(count, active.size());
  }
}

// run: <<<1, 32>>>(out=Empty(32))
// gives: (out == np.arange(32) // 4 * 4 + 3 - np.arange(32) % 4).all()
extern "C" __global__ void tiles_sync_in_shared_memory(float* out) {
  __shared__ float data[32];
  auto tile = cg::tiled_partition<4>(cg::this_thread_block());
  data[threadIdx.x] = threadIdx.x;
  tile.sync();
  out[threadIdx.x] = data[threadIdx.x / 4 * 4 + 3 - threadIdx.x % 4];
}
