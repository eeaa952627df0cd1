// SPDX-License-Identifier: Apache-2.0
// O times 1 / sum: one reciprocal a row, one multiply an element.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::normalise {

struct Reciprocal {
  template <int Rows, int Dim>
  static __device__ void run(Accumulator<Rows, Dim>& o, const RowStats<Rows>& stats) {
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) row(o, i, h, quad_sum(stats.sum[i][h]));
  }

  template <int Rows, int Dim>
  static __device__ void row(Accumulator<Rows, Dim>& o, int i, int h, float sum) {
    rescale_row(o, i, h, ptx::reciprocal(sum));
  }
};

}  // namespace fa::attn::normalise
