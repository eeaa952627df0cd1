// SPDX-License-Identifier: Apache-2.0
// bfloat16.
#pragma once
#include <fa/ptx/math.cuh>

namespace fa::dtype {

struct Bf16 {
  // Row sums of P up to this are safe: 2^40: P has the range of a float; O, a sum of P V, must keep some of it.
  static constexpr float kLargestSum = 1099511627776.f;

  static __device__ u32 pack(float lo, float hi) { return ptx::pack_bf16x2(lo, hi); }
  static __device__ u32 multiply(u32 x, u32 y) { return ptx::multiply_bf16x2(x, y); }
  // A pair of halves that bfloat16 holds exactly.
  static __device__ u32 from_halves(u32 pair) {
    return pack(ptx::f16_to_f32(pair & 0xffff), ptx::f16_to_f32(pair >> 16));
  }
  static __device__ float low(u32 pair) { return __uint_as_float(pair << 16); }
  static __device__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
};

}  // namespace fa::dtype
