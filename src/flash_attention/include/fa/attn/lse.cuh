// SPDX-License-Identifier: Apache-2.0
// The end of a row: O / sum, and the logarithm of the sum of exponentials. A row that saw no key has
// sum 0: its output is 0, its logarithm -inf.
#pragma once
#include <fa/attn/online.cuh>
#include <fa/kernel_args.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

struct RowEnds {
  float sum[2];

  __device__ explicit RowEnds(const RowStats<16>& stats)
      : sum{quad_sum(stats.sum[0][0]), quad_sum(stats.sum[0][1])} {}

  template <int Dim>
  __device__ void normalise(Accumulator<16, Dim>& o) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) rescale_row(o, 0, h, sum[h] == 0.f ? 0.f : ptx::reciprocal(sum[h]));
  }

  __device__ float lse(const RowStats<16>& stats, int h, float softmax_scale) const {
    return sum[h] == 0.f ? -kInfinity : stats.max[0][h] * softmax_scale + ptx::log(sum[h]);
  }
};

// Of the 16 rows from `first_row` on; the first lane of a quad stores.
__device__ inline void store_lse(const ForwardKernelArgs& args, const RowEnds& ends,
                                 const RowStats<16>& stats, int batch, int head, int first_row) {
  float* const lse = args.lse + (static_cast<i64>(batch) * args.heads + head) * args.seq_len_q;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane_id() / 4 + 8 * h;
    if (lane_id() % 4 == 0 && row < args.seq_len_q)
      lse[row] = ends.lse(stats, h, args.softmax_scale);
  }
}

}  // namespace fa::attn
