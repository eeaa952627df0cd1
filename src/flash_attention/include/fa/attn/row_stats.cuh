// SPDX-License-Identifier: Apache-2.0
// Running maximum and sum of the rows a lane sees. Four lanes (a quad) share a row; the sum stays
// per lane until the last block.
#pragma once
#include <fa/core.cuh>

namespace fa::attn {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The offset is subtracted from scaled scores. If a maximum of the warp's rows grew, O must be rescaled.
template <int Rows>
struct RowStats {
  float max[Rows / 16][2], sum[Rows / 16][2], offset[Rows / 16][2], shrink[Rows / 16][2];
  bool grew;

  __device__ void reset() {
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[i][h] = -kInfinity;
        sum[i][h] = 0.f;
      }
  }
};

}  // namespace fa::attn
