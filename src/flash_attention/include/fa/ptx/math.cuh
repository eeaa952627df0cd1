// SPDX-License-Identifier: Apache-2.0
// Arithmetic that every target has: exponential, reciprocal, conversions to packed 16-bit pairs.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

// 2^x, subnormals flushed: one MUFU.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to one ulp: one MUFU.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ln x to a few ulp: one MUFU for the base-2 logarithm.
__device__ inline float log(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y * 0.6931471805599453f;
}

// Hyperbolic tangent to 2^-11: one MUFU.
__device__ inline float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// a / b to two ulp, over the full range of b.
__device__ inline float divide(float a, float b) {
  float y;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// The smaller of two, NaN if one of them is.
__device__ inline float min_nan(float x, float y) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(x), "f"(y));
  return smaller;
}

// The first element of a pair sits in the low half; cvt takes it as its second source.
__device__ inline u32 pack_f16x2(float lo, float hi) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

__device__ inline u32 pack_bf16x2(float lo, float hi) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

__device__ inline float f16_to_f32(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

__device__ inline u32 multiply_f16x2(u32 x, u32 y) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}

// NaN if one of two is.
__device__ inline u32 max_f16x2(u32 x, u32 y) {
  u32 larger;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  return larger;
}

__device__ inline u32 multiply_bf16x2(u32 x, u32 y) {
  u32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}

}  // namespace fa::ptx
