// SPDX-License-Identifier: Apache-2.0
// The tensor cores sum P, as it was rounded: the transpose of V has eight more rows, the first of them
// ones. Their accumulators lose bits as they grow, so the sums of every block are taken out of them.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/ptx/tma.cuh>

namespace fa::sm90::fp8::sums {

struct TensorCores {
  static constexpr int kRows = 8;  // of the transpose of V

  // The words of a warp: 16 keys of eight rows.
  static __device__ void store_rows(char* lane) {
    ptx::st_global_4(lane, lane_id() < 4 ? kOnes : 0);
  }
  // Eight rows in shared memory. A swizzle moves the chunks of a row, which are equal.
  template <int RowBytes>
  static __device__ void write_rows(u32 smem) {
    constexpr int kRowChunks = RowBytes / kChunkBytes;
    const u32 x = threadIdx.x < kRowChunks ? kOnes : 0;
    if (threadIdx.x < kRows * kRowChunks)
      ptx::st_shared_16(smem + threadIdx.x * kChunkBytes, {x, x, x, x});
    ptx::fence_proxy_async();  // products see the rows
  }
  static __device__ void add(float&, float, float, float, float) {}

  // The first lane of a quad has the sum, the others zeros. A constant zero would make ptxas wait for
  // every product before the next, `zero` does not.
  template <int Columns>
  static __device__ void take(Accumulator<16, Columns>& o, attn::RowStats<16>& stats, float zero) {
    float (&sums)[4] = o.v[0][Columns / 8 - 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      stats.sum[0][h] += sums[2 * h];
      sums[2 * h] *= zero;
    }
  }

 private:
  static constexpr u32 kOnes = 0x38383838;
};

}  // namespace fa::sm90::fp8::sums
