// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA with a producer: one Q per warpgroup, ring buffers of K and V, O's own
// buffer if it has one, then the mbarriers, the mailbox for the next tile and a word of each warpgroup.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

struct Mail {
  ptx::Mbarrier full, empty;
  u32 tile, sequence, shared;
};

template <class Config>
class SharedMemory {
  using QTile = typename Shape<Config>::QTile;
  static constexpr int kStages = Config::kStages;
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kQBytes = kConsumers * QTile::kBytes;
  static constexpr int kKBytes = kStages * Shape<Config>::KVTile::kBytes;
  static constexpr int kOBytes = Config::Output::kOwnBuffer ? kQBytes : 0;

 public:
  using KVTile = typename Shape<Config>::KVTile;
  static constexpr int kBytes = kQBytes + 2 * kKBytes + kOBytes + Config::kBarrierBytes;

  __device__ explicit SharedMemory(u32 base) : base_(base) {}

  __device__ QTile q(int warpgroup) const { return QTile(base_ + warpgroup * QTile::kBytes); }
  __device__ KVTile k(int stage) const { return KVTile(base_ + kQBytes + stage * KVTile::kBytes); }
  __device__ KVTile v(int stage) const { return KVTile(k(stage).address + kKBytes); }
  __device__ QTile own_o(int warpgroup) const {
    return QTile(base_ + kQBytes + 2 * kKBytes + warpgroup * QTile::kBytes);
  }

  // Full: the data has arrived. Empty: its readers are done.
  __device__ ptx::Mbarrier q_full(int warpgroup) const { return barrier(warpgroup); }
  __device__ ptx::Mbarrier q_empty(int warpgroup) const { return barrier(kConsumers + warpgroup); }
  __device__ ptx::Mbarrier k_full(int stage) const { return barrier(2 * kConsumers + stage); }
  __device__ ptx::Mbarrier k_empty(int stage) const {
    return barrier(2 * kConsumers + kStages + stage);
  }
  __device__ ptx::Mbarrier v_full(int stage) const {
    return barrier(2 * kConsumers + 2 * kStages + stage);
  }
  __device__ ptx::Mbarrier v_empty(int stage) const {
    return barrier(2 * kConsumers + 3 * kStages + stage);
  }
  __device__ Mail mail() const {
    const u32 at = barrier(kBarriers + kBarriers % 2).address;
    return {barrier(kBarriers - 2), barrier(kBarriers - 1), at, at + kChunkBytes,
            at + 2 * kChunkBytes};
  }

  // Every warp of a consumer arrives once at an empty barrier. A buffer is full when the copy engine has
  // filled it, or all warps that convert.
  __device__ void init_barriers() const {
    constexpr int kWarps = kWarpgroupSize / kWarpSize;
    constexpr int kConverters = Config::kConvertingWarps;
    constexpr int kFillers = kConverters ? kConverters : 1;
#pragma unroll
    for (int w = 0; w < kConsumers; ++w) {
      ptx::mbarrier_init(q_full(w), Config::kConvertQueries ? kConverters : 1);
      ptx::mbarrier_init(q_empty(w), kWarps);
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(k_full(stage), kFillers);
      ptx::mbarrier_init(v_full(stage), kFillers);
      ptx::mbarrier_init(k_empty(stage), kConsumers * kWarps);
      ptx::mbarrier_init(v_empty(stage), kConsumers * kWarps);
    }
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kConsumers * kWarps + kConverters);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  static constexpr int kBarriers = 2 * kConsumers + 4 * kStages + 2;
  static_assert((kBarriers + 1) * ptx::kMbarrierBytes + 2 * kChunkBytes +
                    kConsumers * sizeof(u32) <=
                Config::kBarrierBytes);

  __device__ ptx::Mbarrier barrier(int i) const {
    return {base_ + kQBytes + 2 * kKBytes + kOBytes + i * ptx::kMbarrierBytes};
  }

  const u32 base_;
};

// How the producer tells the consumers the next tile: four words in shared memory, four more for its
// sequence if sequences differ in length, and a pair of mbarriers for them.
inline constexpr Tile kNoMoreTiles = {-1, 0, 0, 0};

__device__ inline void write_words(u32 address, int x, int y, int z, int w) {
  ptx::st_shared_16(address, {static_cast<u32>(x), static_cast<u32>(y), static_cast<u32>(z),
                              static_cast<u32>(w)});
}

__device__ inline int of_first_lane(u32 word) {
  return static_cast<int>(__shfl_sync(~0u, word, 0));
}

template <class Config>
__device__ void post_tile(Mail mail, const Tile& tile, const attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(mail.empty, parity ^ 1);  // everybody has read the previous tile
  write_words(mail.tile, tile.q_block, tile.head, tile.batch, tile.split);
  // Of the keys, consumers need only their number.
  if (Config::Lengths::kPerBatch)
    write_words(mail.sequence, sequence.q_len, sequence.k_len, sequence.q_first, sequence.q_batch);
  ptx::mbarrier_arrive(mail.full);
}

template <class Config>
__device__ attn::Sequence read_sequence(Mail mail, const ForwardKernelArgs& args, int batch) {
  if constexpr (!Config::Lengths::kPerBatch) {
    return Config::Lengths::sequence(args, batch);
  } else {
    ptx::Chunk words = {};
    if (lane_id() == 0) words = ptx::ld_shared_16(mail.sequence);
    return {of_first_lane(words.x), of_first_lane(words.y),
            of_first_lane(words.z), 0,
            of_first_lane(words.w), 0};
  }
}

// Called by every warp; false after the last tile.
template <class Config>
__device__ bool take_tile(Mail mail, const ForwardKernelArgs& args, Tile& tile,
                          attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(mail.full, parity);  // the next tile is in the mailbox
  // Only the lane that releases the mailbox reads it, so no other lane has to be waited for.
  ptx::Chunk words = {};
  if (lane_id() == 0) words = ptx::ld_shared_16(mail.tile);
  tile = {of_first_lane(words.x), of_first_lane(words.y), of_first_lane(words.z),
          Config::Splits::kSplitKv ? of_first_lane(words.w) : 0};
  sequence = read_sequence<Config>(mail, args, tile.batch);
  if (lane_id() == 0) ptx::mbarrier_arrive(mail.empty);
  return tile.q_block >= 0;
}

// Clears the rows from `first` on of a shared tile, with `Threads` threads including this one. Products read
// them although nothing was loaded there, and 0 times NaN is NaN.
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
