// SPDX-License-Identifier: Apache-2.0
// IEEE half precision.
#pragma once
#include <fa/ptx/math.cuh>

namespace fa::dtype {

struct Fp16 {
  // Row sums of P up to this are safe: below 65504, the largest half.
  static constexpr float kLargestSum = 32768.f;

  static __device__ u32 pack(float lo, float hi) { return ptx::pack_f16x2(lo, hi); }
  static __device__ u32 multiply(u32 x, u32 y) { return ptx::multiply_f16x2(x, y); }
  static __device__ u32 from_halves(u32 pair) { return pair; }
  static __device__ float low(u32 pair) { return ptx::f16_to_f32(pair & 0xffff); }
  static __device__ float high(u32 pair) { return ptx::f16_to_f32(pair >> 16); }
};

}  // namespace fa::dtype
