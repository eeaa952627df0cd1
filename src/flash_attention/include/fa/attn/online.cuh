// SPDX-License-Identifier: Apache-2.0
// Online softmax of one 16-row tile, in steps that wgmma kernels order themselves. S becomes P while
// earlier products may still be adding to O, so O is rescaled later.
#pragma once
#include <fa/attn/softmax.cuh>

namespace fa::attn {

struct Masked {  // some keys are masked; a row may not have seen any key yet
  static constexpr bool kHidden = true;
};
struct Open {  // every row sees every key, and has seen a key before
  static constexpr bool kHidden = false;
};
struct FirstMasked : Masked {};  // the first block of its rows: O is still zero

template <int Dim>
__device__ void rescale_rows(Accumulator<16, Dim>& o, const RowStats<16>& stats) {
#pragma unroll
  for (int h = 0; h < 2; ++h) rescale_row(o, 0, h, stats.shrink[0][h]);
}

template <int Keys>
struct LaneMax {
  float of[2];

  __device__ explicit LaneMax(const Accumulator<16, Keys>& s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float max[2] = {s.v[0][0][2 * h], s.v[0][0][2 * h + 1]};
#pragma unroll
      for (int j = 1; j < Keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) max[e] = fmaxf(max[e], s.v[0][j][2 * h + e]);
      of[h] = fmaxf(max[0], max[1]);
    }
  }
};

// The maximum of a row becomes `max`, which is not smaller, and its sum is rescaled. O must be rescaled
// by the same factor.
template <class Exponential>
__device__ void set_max(RowStats<16>& stats, int h, float max, float factor) {
  stats.shrink[0][h] =
      max == -kInfinity ? 1.f : Exponential::exp(stats.max[0][h] - max, 0.f, factor);
  stats.max[0][h] = max;
  stats.sum[0][h] *= stats.shrink[0][h];
}

// The maxima grow to cover `lanes`.
template <class Exponential, int Keys>
__device__ void raise_max(const LaneMax<Keys>& lanes, RowStats<16>& stats, float factor) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    set_max<Exponential>(stats, h, fmaxf(stats.max[0][h], quad_max(lanes.of[h])), factor);
}

// The offsets, if no maximum is too large for them.
template <class Exponential>
__device__ void set_offsets(RowStats<16>& stats, float factor) {
#pragma unroll
  for (int h = 0; h < 2; ++h) stats.offset[0][h] = Exponential::offset(stats.max[0][h], factor);
}

}  // namespace fa::attn
