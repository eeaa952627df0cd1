// SPDX-License-Identifier: Apache-2.0
// Online softmax on accumulator registers: S becomes P, the row statistics advance, and O is
// rescaled to the new maximum. The first key block of a row has nothing to rescale.
#pragma once
#include <fa/attn/row_stats.cuh>

namespace fa::attn {

struct FirstBlock {};
struct LaterBlock {};

// A row whose maximum is -inf has seen no key, or none of a score above -inf: nothing is subtracted
// from its scores. `Open` leaves the test out, for who can tell afterwards that it was needed.
struct Masked {  // keys are hidden; a row may not have seen any yet
  static constexpr bool kEmptyRows = true;
};
struct Open {  // every row sees every key, and has seen one before
  static constexpr bool kEmptyRows = false;
};

// What is subtracted from the scores of row (i, h), of which those too large for it lose the maximum
// here.
template <class Exponential, class Seen, int Rows, int Cols>
__device__ float offset_of(Accumulator<Rows, Cols>& s, int i, int h, float max, float factor) {
  const float offset = Exponential::offset(max, factor);
  if (Seen::kEmptyRows && max == -kInfinity) return 0.f;
  if (Exponential::precise(offset)) return offset;
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
    for (int e = 2 * h; e < 2 * h + 2; ++e) s.v[i][j][e] -= max;
  return 0.f;
}

// What O and the sum of a row are multiplied with when its maximum grows.
template <class Exponential, class Seen>
__device__ float shrink_of(float old, float max, float factor) {
  return Seen::kEmptyRows && max == -kInfinity ? 1.f : Exponential::shrink(old, max, factor);
}

template <int Rows, int Cols>
__device__ float row_max(const Accumulator<Rows, Cols>& s, int i, int h) {
  float max = fmaxf(s.v[i][0][2 * h], s.v[i][0][2 * h + 1]);
#pragma unroll
  for (int j = 1; j < Cols / 8; ++j)
    max = fmaxf(max, fmaxf(s.v[i][j][2 * h], s.v[i][j][2 * h + 1]));
  return max;
}

// Row (i, h) of S becomes exp(s - max); returns `sum` plus this lane's part of the row.
template <class Exponential, class Seen, int Rows, int Cols>
__device__ float exponentiate_row(Accumulator<Rows, Cols>& s, int i, int h, float max, float factor,
                                  float sum) {
  const float offset = offset_of<Exponential, Seen>(s, i, h, max, factor);
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
    for (int e = 2 * h; e < 2 * h + 2; ++e)
      sum += s.v[i][j][e] = Exponential::exp(s.v[i][j][e], offset, factor);
  return sum;
}

template <int Rows, int Cols>
__device__ void rescale_row(Accumulator<Rows, Cols>& o, int i, int h, float by) {
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
    for (int e = 2 * h; e < 2 * h + 2; ++e) o.v[i][j][e] *= by;
}

template <class Exponential, class Seen, int Rows, int Keys, int Dim>
__device__ void softmax(FirstBlock, Accumulator<Rows, Keys>& s, Accumulator<Rows, Dim>& o,
                        RowStats<Rows>& stats, float factor) {
  Exponential::scale(s, factor);
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      stats.max[i][h] = quad_max(row_max(s, i, h));
      stats.sum[i][h] = exponentiate_row<Exponential, Seen>(s, i, h, stats.max[i][h], factor, 0.f);
    }
  o.zero();
}

template <class Exponential, class Seen, int Rows, int Keys, int Dim>
__device__ void softmax(LaterBlock, Accumulator<Rows, Keys>& s, Accumulator<Rows, Dim>& o,
                        RowStats<Rows>& stats, float factor) {
  Exponential::scale(s, factor);
#pragma unroll
  for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float max = fmaxf(stats.max[i][h], quad_max(row_max(s, i, h)));
      const float shrink = shrink_of<Exponential, Seen>(stats.max[i][h], max, factor);
      stats.max[i][h] = max;
      stats.sum[i][h] =
          exponentiate_row<Exponential, Seen>(s, i, h, max, factor, stats.sum[i][h] * shrink);
      rescale_row(o, i, h, shrink);
    }
}

}  // namespace fa::attn
