// SPDX-License-Identifier: Apache-2.0
// Clears shared memory that products read although nothing was loaded there: 0 times NaN is NaN.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/named_barriers.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// Clears the rows from `first` on of a shared tile, with `Threads` threads including this one.
template <int Threads, class Tile>
__device__ void clear_rows(Tile tile, int first, int thread) {
  constexpr int kRowChunks = Tile::kCount * Tile::kColumns / kChunkElements;
  for (int i = first * kRowChunks + thread; i < Tile::kRows * kRowChunks; i += Threads)
    ptx::st_shared_16(tile.chunk(i / kRowChunks, i % kRowChunks), {0, 0, 0, 0});
  ptx::fence_proxy_async();  // the products see the zeros
}

// Clears rows of Q that no load fills, with the threads of their warpgroup.
template <class Config>
__device__ void clear_queries(typename Shape<Config>::QTile tile, int warpgroup) {
  clear_rows<kWarpgroupSize>(tile, Shape<Config>::kRows, threadIdx.x % kWarpgroupSize);
  sync_warpgroup(warpgroup);  // all four warps have stored their zeros
}

// Clears the rows of a block of V from `keys` on, with all consumers.
template <class Config>
__device__ void clear_keys(typename Shape<Config>::KVTile tile, int keys) {
  clear_rows<Config::kConsumers * kWarpgroupSize>(tile, keys, threadIdx.x - kWarpgroupSize);
  sync_consumers<Config>();  // all consumers have stored their zeros
}

}  // namespace fa::sm90
