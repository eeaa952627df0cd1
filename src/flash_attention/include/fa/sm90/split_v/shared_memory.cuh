// SPDX-License-Identifier: Apache-2.0
// What kernels whose two warpgroups share rows have in shared memory after their tiles: the mbarriers, the
// mailbox for the next tile, and what the warpgroups tell each other of their rows.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/pipeline.cuh>
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90::split_v {

inline constexpr int kHalves = 2;        // of V and O, one for each consumer warpgroup
inline constexpr int kStages = kHalves;  // turns with the blocks; warpgroup w has those of stage w

// Of a kernel with `TileBytes` of tiles and `OwnBarrierBytes` of mbarriers of its own.
template <class Config, int TileBytes, int OwnBarrierBytes>
class ExchangeMemory {
  using QBarriers = PipelineBarriers<1>;
  using PBarriers = PipelineBarriers<kStages, 1, 0>;  // P is read before its readers give their own
  static constexpr int kPBarriers = TileBytes + QBarriers::kBarrierBytes;
  static constexpr int kOwn = kPBarriers + PBarriers::kBarrierBytes;
  static constexpr int kMail = kOwn + OwnBarrierBytes;
  static constexpr int kExchangeOffset = TileBytes + Config::kBarrierBytes;
  static_assert(Mail::end(kMail) <= kExchangeOffset);
  static constexpr int kPairBytes = 2 * sizeof(float);  // a number for each row of a lane
  static constexpr int kPairsBytes = kWarpgroupSize * kPairBytes;

 public:
  static constexpr int kBytes = kExchangeOffset + 2 * kHalves * kPairsBytes;

  __device__ explicit ExchangeMemory(u32 base) : base_(base) {}

  // Where this thread of a warpgroup leaves the maxima, and at the end of a tile the sums, of its rows for
  // the same thread of the other one.
  __device__ u32 maxima(int warpgroup) const { return pairs(warpgroup); }
  __device__ u32 sums(int warpgroup) const { return pairs(kHalves + warpgroup); }

  __device__ QBarriers q_pipeline() const { return {base_ + TileBytes}; }
  // Of P, and of the maxima that it is relative to.
  __device__ PBarriers p_pipeline() const { return {base_ + kPBarriers}; }
  __device__ Mail mail() const { return Mail(base_ + kMail); }

 protected:
  __device__ u32 own_barriers() const { return base_ + kOwn; }

  __device__ void init_exchange_barriers() const {
    q_pipeline().init(0, 1, kHalves * kWarpgroupWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) p_pipeline().init_full(stage, kWarpgroupWarps);
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kHalves * kWarpgroupWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

  const u32 base_;

 private:
  __device__ u32 pairs(int i) const {
    return base_ + kExchangeOffset + i * kPairsBytes + threadIdx.x % kWarpgroupSize * kPairBytes;
  }
};

}  // namespace fa::sm90::split_v
