// SPDX-License-Identifier: Apache-2.0
// dQ is added float by float: one addition of a warp covers 128 contiguous bytes.
#pragma once
#include <fa/backward/sum_order/by_value.cuh>
#include <fa/ptx/red.cuh>

namespace fa::sm80::backward::additions {

struct Floats {
  using Order = fa::backward::sum_order::ByValue;

  static __device__ void add(float* fragment, const float (&values)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) ptx::red_add(fragment + Order::offset(lane_id(), e), values[e]);
  }
};

}  // namespace fa::sm80::backward::additions
