// SPDX-License-Identifier: Apache-2.0
// S is scaled element by element, then exp(s - max) is taken in the natural base: FMUL, FADD, FMUL
// and MUFU per element.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::exponential {

struct ScaleThenExp {
  static constexpr float kLog2e = 1.4426950408889634f;

  static __device__ float factor(float softmax_scale) { return softmax_scale; }

  template <int Rows, int Cols>
  static __device__ void scale(Accumulator<Rows, Cols>& s, float factor) {
#pragma unroll
    for (auto& row : s.v)
#pragma unroll
      for (auto& fragment : row)
#pragma unroll
        for (float& x : fragment) x *= factor;
  }

  static __device__ float offset(float max, float) { return max; }
  static __device__ bool precise(float offset) { return offset != -kInfinity; }

  // The scaled score of a row's maximum: S was scaled before.
  static __device__ float score(float max, float /*softmax_scale*/) { return max; }

  static __device__ float exp(float s, float offset, float) {
    return ptx::exp2((s - offset) * kLog2e);
  }
};

}  // namespace fa::attn::exponential
