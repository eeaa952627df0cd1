// SPDX-License-Identifier: Apache-2.0
// IEEE half precision.
#pragma once
#include <fa/ptx/math.cuh>

namespace fa::dtype {

struct Fp16 {
  // Row sums of P up to this are safe: below 65504, the largest half.
  static constexpr float kLargestSum = 32768.f;

  static __device__ u32 pack(float lo, float hi) { return ptx::pack_f16x2(lo, hi); }
};

}  // namespace fa::dtype
