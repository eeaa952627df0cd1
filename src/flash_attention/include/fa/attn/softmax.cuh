// SPDX-License-Identifier: Apache-2.0
// Online softmax on accumulator registers: S becomes P, the row statistics advance, and O is
// rescaled to the new maximum. The first key block of a row has nothing to rescale.
#pragma once
#include <fa/attn/row_stats.cuh>

namespace fa::attn {

struct FirstBlock {};
struct LaterBlock {};

// The factor of the scores. `guess` is NaN, and so is P, once the maximum was subtracted from S first.
struct Factor {
  float exact, guess = exact;
};

// The offsets of S. If one is not precise it is 0, and the maximum is subtracted from S here.
template <class Exponential, int Rows, int Cols>
__device__ void centre(Accumulator<Rows, Cols>& s, RowStats<Rows>& stats, Factor& factor) {
  bool precise = true;
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      stats.offset[i][h] = Exponential::offset(stats.max[i][h], factor.exact);
      precise = precise && Exponential::precise(stats.offset[i][h]);
    }
  if (__all_sync(~0u, precise)) return;
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (Exponential::precise(stats.offset[i][h])) continue;
      stats.offset[i][h] = 0.f;
      if (stats.max[i][h] == -kInfinity) continue;
      factor.guess = kInfinity - kInfinity;
#pragma unroll
      for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) s.v[i][j][e] -= stats.max[i][h];
    }
}

template <int Rows, int Cols>
__device__ float row_max(const Accumulator<Rows, Cols>& s, int i, int h) {
  float max = fmaxf(s.v[i][0][2 * h], s.v[i][0][2 * h + 1]);
#pragma unroll
  for (int j = 1; j < Cols / 8; ++j)
    max = fmaxf(max, fmaxf(s.v[i][j][2 * h], s.v[i][j][2 * h + 1]));
  return max;
}

template <int Rows, int Cols>
__device__ void rescale_row(Accumulator<Rows, Cols>& o, int i, int h, float by) {
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
    for (int e = 2 * h; e < 2 * h + 2; ++e) o.v[i][j][e] *= by;
}

// S becomes P, and its values are added to this lane's share of the sums.
template <class Exponential, int Rows, int Keys>
__device__ void exponentiate(Accumulator<Rows, Keys>& s, RowStats<Rows>& stats, float factor) {
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum[2] = {};
#pragma unroll
      for (int j = 0; j < Keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.v[i][j][2 * h + e];
          sum[e] += x = Exponential::exp(x, stats.offset[i][h], factor);
        }
      stats.sum[i][h] += sum[0] + sum[1];
    }
}

template <class Exponential, int Rows, int Keys, int Dim>
__device__ void softmax(FirstBlock, Accumulator<Rows, Keys>& s, Accumulator<Rows, Dim>& o,
                        RowStats<Rows>& stats, float exact) {
  Factor factor{exact};
  Exponential::scale(s, exact);
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      stats.max[i][h] = quad_max(row_max(s, i, h));
      stats.sum[i][h] = 0.f;
    }
  centre<Exponential>(s, stats, factor);
  exponentiate<Exponential>(s, stats, factor.exact);
  o.zero();
}

template <class Exponential, int Rows, int Keys, int Dim>
__device__ void softmax(LaterBlock, Accumulator<Rows, Keys>& s, Accumulator<Rows, Dim>& o,
                        RowStats<Rows>& stats, float exact) {
  Factor factor{exact};
  Exponential::scale(s, exact);
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float max = fmaxf(stats.max[i][h], quad_max(row_max(s, i, h)));
      const float shrink =
          max == -kInfinity ? 1.f : Exponential::exp(stats.max[i][h] - max, 0.f, factor.exact);
      stats.max[i][h] = max;
      stats.sum[i][h] *= shrink;
      rescale_row(o, i, h, shrink);
    }
  centre<Exponential>(s, stats, factor);
  exponentiate<Exponential>(s, stats, factor.exact);
}

}  // namespace fa::attn
