// SPDX-License-Identifier: Apache-2.0
// O / sum: one division per element.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::normalise {

struct Divide {
  template <int Rows, int Dim>
  static __device__ void row(Accumulator<Rows, Dim>& o, int i, int h, float sum) {
#pragma unroll
    for (int j = 0; j < Dim / 8; ++j)
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) o.v[i][j][e] = ptx::divide(o.v[i][j][e], sum);
  }
};

}  // namespace fa::attn::normalise
