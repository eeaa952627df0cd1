// SPDX-License-Identifier: Apache-2.0
// The sixteen hardware barriers of a CTA; 0 is __syncthreads. `threads` counts those that wait and
// those that only arrive.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace fa::ptx
