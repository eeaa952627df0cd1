// SPDX-License-Identifier: Apache-2.0
// The shared memory of the kernel that computes dQ from the workspace: ring buffers of dS and K, then the
// mbarriers. All addresses are constants.
#pragma once
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/workspace.cuh>

namespace fa::sm90::backward {

inline constexpr int kQueryWarpgroups = 2;  // with 64 queries each

template <class Config>
struct QueryMemory {
  using KeyTile = SharedTile<Config::kDHead, kPanelRows>;
  static constexpr int kStages = Config::kStages;
  static constexpr u32 kDs = kSmemStart;
  static constexpr u32 kK = kDs + kStages * kQueryWarpgroups * Panel::kBytes;
  static constexpr u32 kBarriers = kK + kStages * KeyTile::kBytes;
  static constexpr int kBytes = kBarriers - kSmemStart + 2 * kStages * ptx::kMbarrierBytes;

  static __device__ Panel ds(int stage, int warpgroup) {
    return Panel(kDs + (stage * kQueryWarpgroups + warpgroup) * Panel::kBytes);
  }
  static __device__ KeyTile k(int stage) { return KeyTile(kK + stage * KeyTile::kBytes); }
  static __device__ ptx::Mbarrier full(int stage) {
    return {kBarriers + stage * ptx::kMbarrierBytes};
  }
  static __device__ ptx::Mbarrier empty(int stage) {
    return {kBarriers + (kStages + stage) * ptx::kMbarrierBytes};
  }

  static __device__ void init_barriers() {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full(stage), 1);
      ptx::mbarrier_init(empty(stage), kQueryWarpgroups * kWarps);
    }
    ptx::fence_mbarrier_init();  // TMA sees them
  }
};

}  // namespace fa::sm90::backward
