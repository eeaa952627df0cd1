// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA whose warpgroups split the products of a tile of 64 keys: a ring of K and
// then Q, V, a ring of dO, the statistics of their rows, P and dS, then the mbarriers and the mailbox.
#pragma once
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/workspace.cuh>

namespace fa::sm90::backward {

template <class Config>
struct SplitMemory {
  using Tile64 = SharedTile<Config::kDHead, kPanelRows>;
  static constexpr int kQStages = Config::kStages + 1;  // the first item is K, which leaves at once
  static constexpr int kStages = Config::kStages;
  static constexpr int kDeltas = 2 * kStages;  // dO is released before its delta was read
  static constexpr int kStatBytes = kPanelRows * static_cast<int>(sizeof(float));

  static constexpr u32 kQ = kSmemStart;
  static constexpr u32 kV = kQ + kQStages * Tile64::kBytes;
  static constexpr u32 kDO = kV + Tile64::kBytes;
  static constexpr u32 kP = kDO + kStages * Tile64::kBytes;
  static constexpr u32 kDs = kP + kStages * Panel::kBytes;
  static constexpr u32 kLse = kDs + kStages * Panel::kBytes;
  static constexpr u32 kDelta = kLse + kQStages * kStatBytes;
  static constexpr u32 kBarriers = kDelta + kDeltas * kStatBytes;
  static constexpr int kBytes = kBarriers - kSmemStart + Config::kBarrierBytes;

  static __device__ Tile64 q(int stage) { return Tile64(kQ + stage * Tile64::kBytes); }
  static __device__ Tile64 v() { return Tile64(kV); }
  static __device__ Tile64 d_o(int stage) { return Tile64(kDO + stage * Tile64::kBytes); }
  static __device__ Panel p(int stage) { return Panel(kP + stage * Panel::kBytes); }
  static __device__ Panel ds(int stage) { return Panel(kDs + stage * Panel::kBytes); }
  static __device__ u32 lse(int stage) { return kLse + stage * kStatBytes; }
  static __device__ u32 delta(int slot) { return kDelta + slot * kStatBytes; }

  // Full: the data is there. Empty: its readers are done.
  static __device__ ptx::Mbarrier v_full() { return barrier(0); }
  static __device__ ptx::Mbarrier q_full(int stage) { return barrier(1 + stage); }
  static __device__ ptx::Mbarrier q_empty(int stage) { return barrier(1 + kQStages + stage); }
  static __device__ ptx::Mbarrier d_o_full(int stage) { return others(0, stage); }
  static __device__ ptx::Mbarrier d_o_empty(int stage) { return others(1, stage); }
  static __device__ ptx::Mbarrier p_full(int stage) { return others(2, stage); }
  static __device__ ptx::Mbarrier p_empty(int stage) { return others(3, stage); }
  static __device__ ptx::Mbarrier ds_full(int stage) { return others(4, stage); }
  static __device__ ptx::Mbarrier ds_empty(int stage) { return others(5, stage); }
  static __device__ Mailbox mail() {
    return {kBarriers + (kNumBarriers + kNumBarriers % 2) * ptx::kMbarrierBytes};
  }

  // Every warp of a reader arrives once at an empty barrier, every warp of a writer at a full one.
  static __device__ void init_barriers() {
    ptx::mbarrier_init(v_full(), 1);
#pragma unroll
    for (int stage = 0; stage < kQStages; ++stage) {
      ptx::mbarrier_init(q_full(stage), 1);
      ptx::mbarrier_init(q_empty(stage), kWarps);
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(d_o_full(stage), 1);
      ptx::mbarrier_init(d_o_empty(stage), 2 * kWarps);  // dP and dV read it
      ptx::mbarrier_init(p_full(stage), kWarps);
      ptx::mbarrier_init(p_empty(stage), kWarps);
      ptx::mbarrier_init(ds_full(stage), kWarps);
      ptx::mbarrier_init(ds_empty(stage), kWarps);
    }
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  static constexpr int kNumBarriers = 1 + 2 * kQStages + 6 * kStages;
  static_assert((kNumBarriers + 1) * ptx::kMbarrierBytes + Mailbox::kBytes <=
                Config::kBarrierBytes);

  static __device__ ptx::Mbarrier barrier(int i) { return {kBarriers + i * ptx::kMbarrierBytes}; }
  static __device__ ptx::Mbarrier others(int kind, int stage) {
    return barrier(1 + 2 * kQStages + kind * kStages + stage);
  }
};

}  // namespace fa::sm90::backward
