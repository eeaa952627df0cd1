// SPDX-License-Identifier: Apache-2.0
// An Exponential that passes a piece of the unscaled score on instead of its exponential. The
// softmax scale of the arguments says which piece. The maximum before the first block, -inf, gives
// 0, so that the O it rescales stays 0.
#pragma once
#include <fa/core.cuh>
#include <fa/probe/pieces.cuh>

namespace fa::probe {

struct Scores {
  static __device__ float factor(float piece_index) { return piece_index; }

  template <int Rows, int Cols>
  static __device__ void scale(Accumulator<Rows, Cols>&, float) {}

  static __device__ float offset(float, float) { return 0.f; }

  static __device__ float exp(float s, float, float piece_index) {
    if (isinf(s)) return 0.f;
    const float first = upper_bits(s), rest = s - first, second = upper_bits(rest);
    return piece_index == 0.f ? first : piece_index == 1.f ? second : rest - second;
  }
};

}  // namespace fa::probe
