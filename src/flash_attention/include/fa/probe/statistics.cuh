// SPDX-License-Identifier: Apache-2.0
// A Normalise that puts the row statistics where O was: fragments 0-2 hold the pieces of the
// maximum, fragments 3-5 those of the sum.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/probe/pieces.cuh>

namespace fa::probe {

struct Statistics {
  template <int Rows, int Dim>
  static __device__ void run(Accumulator<Rows, Dim>& o, const attn::RowStats<Rows>& stats) {
    o.zero();
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = attn::quad_sum(stats.sum[i][h]);
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            o.v[i][p][e] = piece(stats.max[i][h], p);
            o.v[i][kPieces + p][e] = piece(sum, p);
          }
      }
  }
};

}  // namespace fa::probe
