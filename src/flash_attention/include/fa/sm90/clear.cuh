// SPDX-License-Identifier: Apache-2.0
// Zeros where nothing was loaded and products read all the same: 0 times NaN is NaN.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// Rows from `first` on of a shared tile, by one warpgroup; a barrier must follow.
template <int DHead, int Rows>
__device__ void clear_rows(u32 tile, int first) {
  using AnyTile = SharedTile<DHead, Rows>;
  constexpr int kRowChunks = DHead / kChunkElements;
  for (int i = first * kRowChunks + threadIdx.x % kWarpgroupSize; i < Rows * kRowChunks;
       i += kWarpgroupSize)
    ptx::st_shared_16(AnyTile::chunk(tile, i / kRowChunks, i % kRowChunks), {0, 0, 0, 0});
  ptx::fence_proxy_async();  // the products see the zeros
}

}  // namespace fa::sm90
