// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA with a producer: one Q per warpgroup, ring buffers of K and V, O's own
// buffer if it has one, then the mbarriers, the mailbox for the next tile and a word of each warpgroup.
#pragma once
#include <fa/ptx/mbarrier.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// A stage of a ring buffer, and the parity of the current phase of its barriers.
template <int Stages>
struct Ring {
  int stage = 0;
  u32 parity = 0;

  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

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

}  // namespace fa::sm90
