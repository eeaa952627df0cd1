// SPDX-License-Identifier: Apache-2.0
// Rows after the end of a packed sequence belong to another one, or to nobody. Products read them with
// factors of zero, and 0 times NaN is NaN, so they are cleared.
#pragma once
#include <fa/ptx/tma.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/named_barriers.cuh>

namespace fa::sm90::backward {

// Waits for all warpgroups that compute together.
template <int Warpgroups>
__device__ void sync_warpgroups() {
  ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kConsumers), Warpgroups * kWarpgroupSize);
}
template <class Config>
__device__ void sync_key_warpgroups() {
  sync_warpgroups<Shape<Config>::kKeyWarpgroups>();
}

// Clears the rows from `first` to `end` of a shared tile with `threads` threads, of which this is one.
template <class Tile>
__device__ void clear_rows(Tile tile, int first, int end, int thread, int threads) {
  constexpr int kRowChunks = Tile::kCount * Tile::kColumns / kChunkElements;
  for (int i = first * kRowChunks + thread; i < end * kRowChunks; i += threads)
    ptx::st_shared_16(tile.chunk(i / kRowChunks, i % kRowChunks), {0, 0, 0, 0});
  ptx::fence_proxy_async();  // the products see the zeros
}

// Clears this warpgroup's rows of K and V that hold no key.
template <class Config, int Warpgroup>
__device__ void clear_keys(Mailbox mail) {
  using Smem = SharedMemory<Config>;
  const int keys = mail.read(Word::kKLen) - mail.read(Word::kKeyFirst);
  constexpr int kFirst = Warpgroup * kWarpgroupRows, kEnd = kFirst + kWarpgroupRows;
  if (keys >= kEnd) return;
  const int thread = threadIdx.x % kWarpgroupSize;
  clear_rows(Smem::k(), max(keys, kFirst), kEnd, thread, kWarpgroupSize);
  clear_rows(Smem::v(), max(keys, kFirst), kEnd, thread, kWarpgroupSize);
  sync_warpgroup(Warpgroup);  // all four warps have stored their zeros
}

// Clears the rows of a block of Q or dO that hold no query, with all key warpgroups.
template <class Config>
__device__ void clear_queries(typename Shape<Config>::QueryTile tile, Mailbox mail, int first_row) {
  const int queries = mail.read(Word::kQLen) - first_row;
  if (queries >= Config::kBR) return;
  clear_rows(tile, queries, Config::kBR, threadIdx.x - kWarpgroupSize,
             Shape<Config>::kKeyWarpgroups * kWarpgroupSize);
  sync_key_warpgroups<Config>();  // all of them have stored their zeros
}

}  // namespace fa::sm90::backward
