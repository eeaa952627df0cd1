// SPDX-License-Identifier: Apache-2.0
// IEEE half precision.
#pragma once
#include <fa/ptx/math.cuh>

namespace fa::dtype {

struct Fp16 {
  static __device__ u32 pack(float lo, float hi) { return ptx::pack_f16x2(lo, hi); }
};

}  // namespace fa::dtype
