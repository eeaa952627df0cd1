// SPDX-License-Identifier: Apache-2.0
// Exchanges between the four lanes of a quad, which hold neighbouring columns of an accumulator.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90 {

// The lanes whose number has the bit `Lanes` give `low`, the others `high`, and take the other's.
template <int Lanes>
__device__ inline void exchange(u32& low, u32& high) {
  const bool upper = lane_id() & Lanes;
  const u32 taken = __shfl_xor_sync(~0u, upper ? low : high, Lanes);
  (upper ? low : high) = taken;
}

// Word i of lane t becomes word t of lane i.
__device__ inline void transpose_quad(u32 (&word)[4]) {
  exchange<1>(word[0], word[1]);
  exchange<1>(word[2], word[3]);
  exchange<2>(word[0], word[2]);
  exchange<2>(word[1], word[3]);
}

}  // namespace fa::sm90
