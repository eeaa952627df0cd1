// SPDX-License-Identifier: Apache-2.0
// The end of a row: O / sum, and the logarithm of the sum of exponentials. A sink is one more score in
// the sum, with no value. A row that saw no key has output 0; without a sink its logarithm is -inf.
#pragma once
#include <fa/attn/online.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

struct RowEnds {
  float inverse[2];  // what O is multiplied with
  float lse[2];

  __device__ RowEnds(const RowStats<16>& stats, float scale, const float* sinks, int head) {
    constexpr float kLog2e = 1.4426950408889634f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = quad_sum(stats.sum[0][h]);
      float max = sum == 0.f ? -kInfinity : stats.max[0][h] * scale;
      float shrink = 1.f;
      if (sinks) {
        const float sink = sinks[head], larger = fmaxf(max, sink);
        shrink = sum == 0.f ? 0.f : ptx::exp2((max - larger) * kLog2e);
        sum = sum * shrink + ptx::exp2((sink - larger) * kLog2e);
        max = larger;
      }
      inverse[h] = sum == 0.f ? 0.f : shrink * ptx::reciprocal(sum);
      lse[h] = sum == 0.f ? -kInfinity : max + ptx::log(sum);
    }
  }

  template <int Dim>
  __device__ void normalise(Accumulator<16, Dim>& o) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) rescale_row(o, 0, h, inverse[h]);
  }
};

// Of the 16 rows from `first_row` of a sequence on; the first lane of a quad stores.
__device__ inline void store_lse(const ForwardKernelArgs& args, const RowEnds& ends,
                                 const Sequence& sequence, int head, int first_row) {
  float* const lse = args.lse + sequence.q_batch * args.lse_batch_stride +
                     head * args.lse_head_stride + sequence.q_first;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane_id() / 4 + 8 * h;
    if (lane_id() % 4 == 0 && row < sequence.q_len) lse[row] = ends.lse[h];
  }
}

}  // namespace fa::attn
