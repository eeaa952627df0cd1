// SPDX-License-Identifier: Apache-2.0
// The named barriers of a CTA and their participants; 0 is __syncthreads.
#pragma once
#include <fa/ptx/named_barrier.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

inline constexpr int kMostConsumers = 3;

enum class NamedBarrier : int {
  kTurn = 1,                                // one for each consumer: its turn at the tensor cores
  kWarpgroup = kTurn + kMostConsumers,      // one for each consumer: its four warps
  kConsumers = kWarpgroup + kMostConsumers  // all of them
};
static_assert(static_cast<int>(NamedBarrier::kConsumers) < 16);

// The barrier of `warpgroup`, of a kind that each consumer has one of.
__device__ constexpr int id_of(NamedBarrier first, int warpgroup) {
  return static_cast<int>(first) + warpgroup;
}

// Waits for all threads of the warpgroup.
__device__ inline void sync_warpgroup(int warpgroup) {
  ptx::named_barrier_sync(id_of(NamedBarrier::kWarpgroup, warpgroup), kWarpgroupSize);
}

// Waits for all consumers.
template <class Config>
__device__ void sync_consumers() {
  ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kConsumers),
                          Config::kConsumers * kWarpgroupSize);
}

}  // namespace fa::sm90
