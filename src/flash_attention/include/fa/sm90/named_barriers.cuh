// SPDX-License-Identifier: Apache-2.0
// Who meets at which hardware barrier of a CTA; 0 is __syncthreads.
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

// Of the barriers that each consumer has one of, that of `warpgroup`.
__device__ constexpr int id_of(NamedBarrier first, int warpgroup) {
  return static_cast<int>(first) + warpgroup;
}

// All threads of the warpgroup have come here.
__device__ inline void sync_warpgroup(int warpgroup) {
  ptx::named_barrier_sync(id_of(NamedBarrier::kWarpgroup, warpgroup), kWarpgroupSize);
}

// All consumers have come here.
template <class Config>
__device__ void sync_consumers() {
  ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kConsumers),
                          Config::kConsumers * kWarpgroupSize);
}

}  // namespace fa::sm90
