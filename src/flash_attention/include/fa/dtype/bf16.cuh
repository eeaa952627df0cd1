// SPDX-License-Identifier: Apache-2.0
// bfloat16.
#pragma once
#include <fa/ptx/math.cuh>

namespace fa::dtype {

struct Bf16 {
  static __device__ u32 pack(float lo, float hi) { return ptx::pack_bf16x2(lo, hi); }
};

}  // namespace fa::dtype
