// SPDX-License-Identifier: Apache-2.0
// The end of a row: O / sum, and the log-sum-exp. A sink is a logit that is added to the sum only. A row
// that saw no key has output 0; its log-sum-exp is the sink, or -inf without one.
#pragma once
#include <fa/attn/online.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

struct RowEnd {
  float sum, max;      // of exp(score - max), the largest score
  float shrink = 1.f;  // factor of O, which is relative to the maximum without the sink

  __device__ RowEnd(float sum_seen, float max_seen)
      : sum(sum_seen), max(sum_seen == 0.f ? -kInfinity : max_seen) {}

  __device__ void add_sink(float sink) {
    constexpr float kLog2e = 1.4426950408889634f;
    const float larger = fmaxf(max, sink);
    if (larger == -kInfinity) return;  // there is neither a key nor a sink
    shrink = sum == 0.f ? 0.f : ptx::exp2((max - larger) * kLog2e);
    sum = sum * shrink + ptx::exp2((sink - larger) * kLog2e);
    max = larger;
  }

  // The factor or divisor of O.
  __device__ float inverse() const { return sum == 0.f ? 0.f : shrink * ptx::reciprocal(sum); }
  __device__ float divisor() const { return sum == 0.f ? 1.f : sum * ptx::reciprocal(shrink); }
  __device__ float lse() const { return sum == 0.f ? -kInfinity : max + ptx::log(sum); }
};

struct RowEnds {
  RowEnd row[2];  // l / 4 + 8 h

  __device__ RowEnds(const RowStats<16>& stats, float scale)
      : row{{quad_sum(stats.sum[0][0]), stats.max[0][0] * scale},
            {quad_sum(stats.sum[0][1]), stats.max[0][1] * scale}} {}

  // `factor` is that of the values.
  template <int Dim>
  __device__ void normalise(Accumulator<16, Dim>& o, float factor = 1.f) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) rescale_row(o, 0, h, row[h].inverse() * factor);
  }
};

}  // namespace fa::attn
