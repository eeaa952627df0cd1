// SPDX-License-Identifier: Apache-2.0
// The end of a row: O / sum, and the logarithm of the sum of exponentials. A sink is one more score in
// the sum, with no value. A row that saw no key has output 0; without a sink its logarithm is -inf.
#pragma once
#include <fa/attn/online.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

struct RowEnds {
  float inverse[2];  // what O is multiplied with
  float lse[2];

  // `sink(h)` is the sink of row l / 4 + 8 h.
  template <class Sink>
  __device__ RowEnds(const RowStats<16>& stats, float scale, bool has_sinks, Sink sink_of) {
    constexpr float kLog2e = 1.4426950408889634f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = quad_sum(stats.sum[0][h]);
      float max = sum == 0.f ? -kInfinity : stats.max[0][h] * scale;
      float shrink = 1.f;
      if (has_sinks) {
        const float sink = sink_of(h), larger = fmaxf(max, sink);
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

}  // namespace fa::attn
