// SPDX-License-Identifier: Apache-2.0
// Online softmax on accumulator registers: S becomes P, the row statistics advance, and O is
// rescaled to the new maximum. The first key block of a row has nothing to rescale.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

// Running maximum and sum of the rows a lane sees. Four lanes (a quad) share a row; the sum stays
// per lane until the last block.
inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

// The largest x of `Lanes` neighbouring lanes, and their sum.
template <int Lanes>
__device__ float lanes_max(float x) {
#pragma unroll
  for (int lanes = Lanes / 2; lanes; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}

template <int Lanes, class T>
__device__ T lanes_sum(T x) {
#pragma unroll
  for (int lanes = Lanes / 2; lanes; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The offset is subtracted from scaled scores. If a maximum of the warp's rows grew, O must be rescaled.
template <int Rows>
struct RowStats {
  float max[Rows / 16][2], sum[Rows / 16][2], offset[Rows / 16][2], shrink[Rows / 16][2];
  bool grew;

  __device__ void reset() {
    grew = false;
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[i][h] = -kInfinity;
        sum[i][h] = 0.f;
        shrink[i][h] = 1.f;
      }
  }
};

template <class T>
concept ExponentialSlot = requires(Accumulator<16, 16>& s, float x) {
  { T::factor(x) } -> Same<float>;
  T::scale(s, x);
  { T::offset(x, x) } -> Same<float>;
  { T::precise(x) } -> Same<bool>;
  { T::score(x, x) } -> Same<float>;
  { T::exp(x, x, x) } -> Same<float>;
};

}  // namespace fa::attn

namespace fa::attn::exponential {

// S is scaled element by element, then exp(s - max) is taken in the natural base: FMUL, FADD, FMUL
// and MUFU per element.
struct ScaleThenExp {
  static __device__ float factor(float softmax_scale) { return softmax_scale; }

  template <int Rows, int Cols>
  static __device__ void scale(Accumulator<Rows, Cols>& s, float factor) {
#pragma unroll
    for (auto& row : s.v)
#pragma unroll
      for (auto& fragment : row)
#pragma unroll
        for (float& x : fragment) x *= factor;
  }

  static __device__ float offset(float max, float) { return max; }
  static __device__ bool precise(float offset) { return offset != -kInfinity; }

  // The scaled score of a row's maximum: S was scaled before.
  static __device__ float score(float max, float /*softmax_scale*/) { return max; }

  static __device__ float exp(float s, float offset, float) {
    return ptx::exp2((s - offset) * kLog2e);
  }
};

// The scale and log2(e) are one factor c: exp2(c s - c max) is one FFMA and one MUFU per
// element, and the product c max is one multiplication per row.
struct FusedExp2 {
  static __device__ float factor(float softmax_scale) { return softmax_scale * kLog2e; }

  template <int Rows, int Cols>
  static __device__ void scale(Accumulator<Rows, Cols>&, float) {}

  static __device__ float offset(float max, float factor) { return max * factor; }

  // Up to here c max is rounded by at most 2^-11; beyond, max is subtracted first. -inf is no maximum.
  static __device__ bool precise(float offset) { return fabsf(offset) < 0x1p14f; }

  // The scaled score of a row's maximum.
  static __device__ float score(float max, float softmax_scale) { return max * softmax_scale; }

  static __device__ float exp(float s, float offset, float factor) {
    return ptx::exp2(fmaf(s, factor, -offset));
  }
};

}  // namespace fa::attn::exponential

namespace fa::attn {

struct FirstBlock {};
struct LaterBlock {};

// The factor of the scores. `stale` is NaN, and so is P, once the maximum was subtracted from S first.
struct Factor {
  float exact, stale = exact;
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
      factor.stale = kInfinity - kInfinity;
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

// All elements of a row have its offset.
struct OffsetsOfRows {
  __device__ float factor(float of_rows) const { return of_rows; }
  __device__ float operator()(float of_row, int /*h*/, int /*column*/) const { return of_row; }
};

// S becomes P, and its values are added to this lane's share of the sums.
template <class Exponential, int Rows, int Keys, class Offsets = OffsetsOfRows>
__device__ void exponentiate(Accumulator<Rows, Keys>& s, RowStats<Rows>& stats, float factor,
                             const Offsets& offsets = {}) {
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
          const float offset = offsets(stats.offset[i][h], h, 8 * j + e);
          sum[e] += x = Exponential::exp(x, offset, offsets.factor(factor));
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
