// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: Q, two blocks of K, the mbarriers and the mailbox for the next tile, then
// what the two warpgroups tell each other of their rows.
#pragma once
#include <fa/ptx/mbarrier.cuh>
#include <fa/sm90/mla/tiles.cuh>
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90::mla {

inline constexpr int kStages = kHalves;  // blocks of K; warpgroup w computes the scores of stage w

// The columns of a block of K are loaded and released in three parts: the halves of V, and the rest.
inline constexpr int kRotaryPart = kHalves;
inline constexpr int kParts = kHalves + 1;
inline constexpr int kRotaryTurn = 1;  // after the first half

// The parts of a stage in the order of loads and products. The half that the stage's own warpgroup multiplies
// with V comes last, because it is released last.
__device__ inline int nth_part(int stage, int n) {
  return n == kRotaryTurn ? kRotaryPart : n == 0 ? 1 - stage : stage;
}

template <class Config>
class SharedMemory {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using HalfTile = typename Tiles<Config>::HalfTile;
  using PTile = typename Tiles<Config>::PTile;
  using RotaryTile = typename Tiles<Config>::RotaryTile;
  static constexpr int kBarrierOffset = QTile::kBytes + kStages * KTile::kBytes;
  static constexpr int kExchangeOffset = kBarrierOffset + Config::kBarrierBytes;
  static constexpr int kPairBytes = 2 * sizeof(float);  // a number for each row of a lane
  static constexpr int kPairsBytes = kWarpgroupSize * kPairBytes;

 public:
  static constexpr int kBytes = kExchangeOffset + 2 * kHalves * kPairsBytes;

  __device__ explicit SharedMemory(u32 base) : base_(base) {}

  __device__ QTile q() const { return QTile(base_); }
  __device__ KTile k(int stage) const { return KTile(base_ + QTile::kBytes).after(stage); }
  __device__ HalfTile v(int stage, int half) const {
    return HalfTile(k(stage).panel(half * HalfTile::kCount));
  }
  __device__ RotaryTile rotary(int stage) const {
    return RotaryTile(k(stage).panel(kRotaryPart * HalfTile::kCount));
  }
  __device__ PTile p(int stage) const { return PTile(rotary(stage).address); }

  // Where this thread of a warpgroup leaves the maxima, and at the end of a tile the sums, of its rows for
  // the same thread of the other one.
  __device__ u32 maxima(int warpgroup) const { return pairs(warpgroup); }
  __device__ u32 sums(int warpgroup) const { return pairs(kHalves + warpgroup); }

  // Full: the data has arrived. Empty: its readers are done.
  __device__ ptx::Mbarrier q_full() const { return barrier(0); }
  __device__ ptx::Mbarrier q_empty() const { return barrier(1); }
  __device__ ptx::Mbarrier k_full(int stage, int part) const {
    return barrier(2 + stage * kParts + part);
  }
  __device__ ptx::Mbarrier k_empty(int stage, int part) const {
    return barrier(2 + (kStages + stage) * kParts + part);
  }
  // P of the stage is written, and the maxima that it is relative to.
  __device__ ptx::Mbarrier p_full(int stage) const {
    return barrier(2 + 2 * kStages * kParts + stage);
  }
  // S of the stage is complete.
  __device__ ptx::Mbarrier s_full(int stage) const {
    return barrier(2 + 2 * kStages * kParts + kStages + stage);
  }
  __device__ Mail mail() const {
    const u32 at = barrier(kBarriers).address;
    return {barrier(kBarriers - 2), barrier(kBarriers - 1), at, at + kChunkBytes, 0};
  }

  // Each part of a stage is released by the four warps of one warpgroup: a half of V by the one that
  // multiplies with it, the rotary columns by the one that reads P there.
  __device__ void init_barriers() const {
    constexpr int kWarps = kWarpgroupSize / kWarpSize;
    ptx::mbarrier_init(q_full(), 1);
    ptx::mbarrier_init(q_empty(), kHalves * kWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ptx::mbarrier_init(k_full(stage, part), 1);
        ptx::mbarrier_init(k_empty(stage, part), kWarps);
      }
      ptx::mbarrier_init(p_full(stage), kWarps);
      ptx::mbarrier_init(s_full(stage), kWarps);
    }
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kHalves * kWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  static constexpr int kBarriers = 2 + 2 * kStages * kParts + 2 * kStages + 2;  // an even number
  static_assert(kBarriers % 2 == 0 && kBarrierOffset % kChunkBytes == 0);
  static_assert(kBarriers * ptx::kMbarrierBytes + 2 * kChunkBytes <= Config::kBarrierBytes);

  __device__ ptx::Mbarrier barrier(int i) const {
    return {base_ + kBarrierOffset + i * ptx::kMbarrierBytes};
  }
  __device__ u32 pairs(int i) const {
    return base_ + kExchangeOffset + i * kPairsBytes + threadIdx.x % kWarpgroupSize * kPairBytes;
  }

  const u32 base_;
};

}  // namespace fa::sm90::mla
