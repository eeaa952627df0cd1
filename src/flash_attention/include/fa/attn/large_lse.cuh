// SPDX-License-Identifier: Apache-2.0
// Log-sum-exps whose rounding shows in P = exp2(s - lse): at 2^14 float32 leaves them 2^-10, at 2^27 eight.
// P of a row's largest score could be any power of two. Such a log-sum-exp is lowered by what rounding may
// have raised it, so that this P is 1 or more, and main kernels limit P to 1.
#pragma once
#include <fa/attn/row_stats.cuh>

namespace fa::attn {

inline constexpr float kLargeLse = 0x1p14f;  // to base 2
// Half an ulp each of lse, of the scale, of both of their products with log2(e), and of the score.
inline constexpr float kLseRounding = 0x1p-21f;

__device__ inline float lowered_if_large(float lse_log2) {
  const float size = fabsf(lse_log2);
  return size < kLargeLse ? lse_log2 : lse_log2 - size * kLseRounding;
}

// Infinity stands for a row that sees no key, and is not large.
__device__ inline bool is_large(float lse_log2) {
  return __float_as_uint(fabsf(lse_log2)) - __float_as_uint(kLargeLse) <
         __float_as_uint(kInfinity) - __float_as_uint(kLargeLse);
}

}  // namespace fa::attn
