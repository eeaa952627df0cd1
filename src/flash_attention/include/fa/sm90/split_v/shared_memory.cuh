// SPDX-License-Identifier: Apache-2.0
// What kernels whose two warpgroups share rows have in shared memory after their tiles: the mbarriers, the
// mailbox for the next tile, and what the warpgroups tell each other of their rows.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90::split_v {

inline constexpr int kHalves = 2;        // of V and O, one for each consumer warpgroup
inline constexpr int kStages = kHalves;  // turns with the blocks; warpgroup w has those of stage w
inline constexpr int kGroupWarps = kWarpgroupSize / kWarpSize;

// Of a kernel with `TileBytes` of tiles and `OwnBarriers` mbarriers of its own.
template <class Config, int TileBytes, int OwnBarriers>
class ExchangeMemory {
  static constexpr int kExchangeOffset = TileBytes + Config::kBarrierBytes;
  static constexpr int kPairBytes = 2 * sizeof(float);  // a number for each row of a lane
  static constexpr int kPairsBytes = kWarpgroupSize * kPairBytes;

 public:
  static constexpr int kBytes = kExchangeOffset + 2 * kHalves * kPairsBytes;

  __device__ explicit ExchangeMemory(u32 base) : base_(base) {}

  // Where this thread of a warpgroup leaves the maxima, and at the end of a tile the sums, of its rows for
  // the same thread of the other one.
  __device__ u32 maxima(int warpgroup) const { return pairs(warpgroup); }
  __device__ u32 sums(int warpgroup) const { return pairs(kHalves + warpgroup); }

  // Full: the data has arrived. Empty: its readers are done.
  __device__ ptx::Mbarrier q_full() const { return barrier(0); }
  __device__ ptx::Mbarrier q_empty() const { return barrier(1); }
  // P of the stage is written, and the maxima that it is relative to.
  __device__ ptx::Mbarrier p_full(int stage) const { return barrier(2 + stage); }
  __device__ Mail mail() const {
    const u32 at = barrier(kBarriers).address;
    return {barrier(kBarriers - 2), barrier(kBarriers - 1), at, at + kChunkBytes, 0};
  }

 protected:
  __device__ ptx::Mbarrier own_barrier(int i) const { return barrier(2 + kStages + i); }

  __device__ void init_exchange_barriers() const {
    ptx::mbarrier_init(q_full(), 1);
    ptx::mbarrier_init(q_empty(), kHalves * kGroupWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(p_full(stage), kGroupWarps);
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kHalves * kGroupWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

  const u32 base_;

 private:
  static constexpr int kBarriers = 2 + kStages + OwnBarriers + 2;  // an even number
  static_assert(kBarriers % 2 == 0 && TileBytes % kChunkBytes == 0);
  static_assert(kBarriers * ptx::kMbarrierBytes + 2 * kChunkBytes <= Config::kBarrierBytes);

  __device__ ptx::Mbarrier barrier(int i) const {
    return {base_ + TileBytes + i * ptx::kMbarrierBytes};
  }
  __device__ u32 pairs(int i) const {
    return base_ + kExchangeOffset + i * kPairsBytes + threadIdx.x % kWarpgroupSize * kPairBytes;
  }
};

}  // namespace fa::sm90::split_v
