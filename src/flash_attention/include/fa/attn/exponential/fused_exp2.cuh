// SPDX-License-Identifier: Apache-2.0
// The scale and log2(e) are one factor c: exp2(c s - c max) is one FFMA and one MUFU per
// element, and the product c max is one multiplication per row.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::exponential {

struct FusedExp2 {
  static constexpr float kLog2e = 1.4426950408889634f;

  static __device__ float factor(float softmax_scale) { return softmax_scale * kLog2e; }

  template <int Rows, int Cols>
  static __device__ void scale(Accumulator<Rows, Cols>&, float) {}

  static __device__ float offset(float max, float factor) { return max * factor; }

  // Up to here c max is rounded by at most 2^-11; beyond, max is subtracted first. -inf is no maximum.
  static __device__ bool precise(float offset) { return fabsf(offset) < 0x1p14f; }

  // The scaled score of a row's maximum.
  static __device__ float score(float max, float softmax_scale) { return max * softmax_scale; }

  static __device__ float exp(float s, float offset, float factor) {
    return ptx::exp2(fmaf(s, factor, -offset));
  }
};

}  // namespace fa::attn::exponential
