// SPDX-License-Identifier: Apache-2.0
// Zeros where nothing was loaded and products read all the same: 0 times NaN is NaN.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/ptx/named_barrier.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// Rows from `first` on of a shared tile, by `Threads` threads of whom this is one.
template <int DHead, int Rows, int Threads>
__device__ void clear_rows(u32 tile, int first, int thread) {
  using AnyTile = SharedTile<DHead, Rows>;
  constexpr int kRowChunks = DHead / kChunkElements;
  for (int i = first * kRowChunks + thread; i < Rows * kRowChunks; i += Threads)
    ptx::st_shared_16(AnyTile::chunk(tile, i / kRowChunks, i % kRowChunks), {0, 0, 0, 0});
  ptx::fence_proxy_async();  // the products see the zeros
}

// Rows of Q that no load fills, by their warpgroup.
template <class Config>
__device__ void clear_queries(u32 tile, int warpgroup) {
  clear_rows<Config::kDHead, kWarpgroupRows, kWarpgroupSize>(tile, Shape<Config>::kRows,
                                                             threadIdx.x % kWarpgroupSize);
  ptx::named_barrier_sync(4 + warpgroup, kWarpgroupSize);  // all four warps' zeros are there
}

// Rows of a block of V from `keys` on, by all consumers.
template <class Config>
__device__ void clear_keys(u32 tile, int keys) {
  constexpr int kThreads = Config::kConsumers * kWarpgroupSize;
  clear_rows<Config::kDHead, Config::kBC, kThreads>(tile, keys, threadIdx.x - kWarpgroupSize);
  ptx::named_barrier_sync(7, kThreads);  // all consumers' zeros are there
}

}  // namespace fa::sm90
