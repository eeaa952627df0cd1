// SPDX-License-Identifier: Apache-2.0
// A lane adds its four values of a fragment of dQ at once, which sm_90 and newer can.
#pragma once
#include <fa/backward/sum_order/by_lane.cuh>
#include <fa/ptx/red.cuh>

namespace fa::sm80::backward::additions {

struct Vectors {
  using Order = fa::backward::sum_order::ByLane;

  static __device__ void add(float* fragment, const float (&values)[4]) {
    ptx::red_add_4(fragment + 4 * lane_id(), values);
  }
};

}  // namespace fa::sm80::backward::additions
