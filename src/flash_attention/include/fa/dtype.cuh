// SPDX-License-Identifier: Apache-2.0
// The slot DType: the element types of 16 bits.
#pragma once
#include <fa/ptx/math.cuh>

namespace fa::attn {

template <class T>
concept DTypeSlot = requires(float x) {
  { T::kLargestSum } -> Same<const float&>;
  { T::kHasFloatRange } -> Same<const bool&>;
  { T::pack(x, x) } -> Same<u32>;
};

}  // namespace fa::attn

namespace fa::dtype {

// IEEE half precision.
struct Fp16 {
  // Row sums of P up to this are safe: below 65504, the largest half.
  static constexpr float kLargestSum = 32768.f;
  static constexpr bool kHasFloatRange = false;

  static __device__ u32 pack(float lo, float hi) { return ptx::pack_f16x2(lo, hi); }
  static __device__ u32 multiply(u32 x, u32 y) { return ptx::multiply_f16x2(x, y); }
  static __device__ u32 at_most_one(u32 pair) { return ptx::min_f16x2(pair, 0x3c003c00u); }
  static __device__ u32 from_halves(u32 pair) { return pair; }
  static __device__ float low(u32 pair) { return ptx::f16_to_f32(pair & 0xffff); }
  static __device__ float high(u32 pair) { return ptx::f16_to_f32(pair >> 16); }
};

// bfloat16.
struct Bf16 {
  // Row sums of P up to this are safe: 2^40: P has the range of a float; O, a sum of P V, must keep some of it.
  static constexpr float kLargestSum = 1099511627776.f;
  static constexpr bool kHasFloatRange = true;

  static __device__ u32 pack(float lo, float hi) { return ptx::pack_bf16x2(lo, hi); }
  static __device__ u32 multiply(u32 x, u32 y) { return ptx::multiply_bf16x2(x, y); }
  static __device__ u32 at_most_one(u32 pair) { return ptx::min_bf16x2(pair, 0x3f803f80u); }
  // A pair of halves that bfloat16 holds exactly.
  static __device__ u32 from_halves(u32 pair) {
    return pack(ptx::f16_to_f32(pair & 0xffff), ptx::f16_to_f32(pair >> 16));
  }
  static __device__ float low(u32 pair) { return __uint_as_float(pair << 16); }
  static __device__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
};

}  // namespace fa::dtype

namespace fa {

// Columns 16 n to 16 n + 15 of an accumulator's 16 rows as the A operand of a product. Both have one lane map.
template <class DType, int Fragments>
__device__ void pack_operand(u32 (&pairs)[4], const float (&rows)[Fragments][4], int n) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float (&x)[4] = rows[2 * n + e / 2];
    pairs[e] = DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1]);
  }
}

// The m16n8k16 product of each data type.
template <class DType>
__device__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

template <>
__device__ inline void mma<dtype::Fp16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  ptx::mma_m16n8k16_f16(d, a, b0, b1);
}

template <>
__device__ inline void mma<dtype::Bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  ptx::mma_m16n8k16_bf16(d, a, b0, b1);
}

}  // namespace fa
