// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: buffers of Q, ring buffers of K, the copies of O in fp32, ring buffers of V,
// then the mbarriers and the mailbox for the next tile.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90::fp8 {

// Two e4m3 elements take the place of a 16-bit one: in bytes, tiles of Q and K are 16-bit tiles of half the
// columns, and a step of 32 columns is one of 16.
template <class Config>
struct Tiles {
  using QTile = SharedTile<Config::kDHead / 2, kWarpgroupRows>;  // of one warpgroup
  using KTile = SharedTile<Config::kDHead / 2, Config::kBC>;
  using VTile =
      typename Config::Values::template Tile<Config::kDHead, Config::Sums::kRows, Config::kBC>;
};

template <class Config>
class SharedMemory {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using VTile = typename Tiles<Config>::VTile;
  static constexpr int kStages = Config::kStages;
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kQBuffers = Config::kQBuffers;
  static constexpr int kKOffset = kQBuffers * kConsumers * QTile::kBytes;
  static constexpr int kCopyOffset = kKOffset + kStages * KTile::kBytes;
  static constexpr int kCopyBytes =
      kWarpgroupSize * Config::Promotion::template kThreadBytes<Config::kDHead>;
  static constexpr int kVOffset = kCopyOffset + kConsumers * kCopyBytes;
  static constexpr int kBarrierOffset = kVOffset + kStages * VTile::kBytes;

 public:
  static constexpr int kBytes = kBarrierOffset + Config::kBarrierBytes;

  __device__ explicit SharedMemory(u32 base) : base_(base) {}

  __device__ QTile q(int buffer, int warpgroup) const {
    return QTile(base_).after(buffer * kConsumers + warpgroup);
  }
  __device__ KTile k(int stage) const { return KTile(base_ + kKOffset).after(stage); }
  __device__ VTile v(int stage) const { return VTile(base_ + kVOffset + stage * VTile::kBytes); }
  // What this thread of a warpgroup has of the copy of O.
  __device__ u32 copy(int warpgroup) const {
    return base_ + kCopyOffset + warpgroup * kCopyBytes +
           threadIdx.x % kWarpgroupSize * kChunkBytes;
  }

  // Full: the data has arrived. Empty: its readers are done.
  __device__ ptx::Mbarrier q_full(int buffer) const { return barrier(buffer); }
  __device__ ptx::Mbarrier q_empty(int buffer) const { return barrier(kQBuffers + buffer); }
  __device__ ptx::Mbarrier k_full(int stage) const { return of_stage(0, stage); }
  __device__ ptx::Mbarrier k_empty(int stage) const { return of_stage(1, stage); }
  __device__ ptx::Mbarrier v_full(int stage) const { return of_stage(2, stage); }
  __device__ ptx::Mbarrier v_empty(int stage) const { return of_stage(3, stage); }
  __device__ Mail mail() const {
    const u32 at = barrier(kBarriers).address;
    return {barrier(kBarriers - 2), barrier(kBarriers - 1), at, at + kChunkBytes, 0};
  }

  // One thread fills; every warp of the consumers arrives once at an empty barrier.
  __device__ void init_barriers() const {
    constexpr int kWarps = kConsumers * kWarpgroupSize / kWarpSize;
#pragma unroll
    for (int buffer = 0; buffer < kQBuffers; ++buffer) {
      ptx::mbarrier_init(q_full(buffer), 1);
      ptx::mbarrier_init(q_empty(buffer), kWarps);
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(k_full(stage), 1);
      ptx::mbarrier_init(k_empty(stage), kWarps);
      ptx::mbarrier_init(v_full(stage), 1);
      ptx::mbarrier_init(v_empty(stage), kWarps);
    }
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  static constexpr int kBarriers = 2 * kQBuffers + 4 * kStages + 2;  // an even number
  static_assert(kBarrierOffset % kChunkBytes == 0);
  static_assert(kBarriers * ptx::kMbarrierBytes + 2 * kChunkBytes <= Config::kBarrierBytes);

  __device__ ptx::Mbarrier of_stage(int kind, int stage) const {
    return barrier(2 * kQBuffers + kind * kStages + stage);
  }
  __device__ ptx::Mbarrier barrier(int i) const {
    return {base_ + kBarrierOffset + i * ptx::kMbarrierBytes};
  }

  const u32 base_;
};

}  // namespace fa::sm90::fp8
