// SPDX-License-Identifier: Apache-2.0
// The softmax of a block: S becomes P in e4m3, the A operand of O += P V. The weight of a row's maximum is
// 2^kShift, so that small weights keep their bits, and weights may grow to 2^kLimit before the maximum is
// raised. Blocks without a mask compute no maximum: P is computed with the old one, and its bytes show
// whether a weight grew too large or is NaN. The scores are still in their registers then.
#pragma once
#include <fa/attn/exponential/fused_exp2.cuh>
#include <fa/attn/online.cuh>
#include <fa/ptx/e4m3.cuh>
#include <fa/sm90/fp8/value_tile.cuh>

namespace fa::sm90::fp8 {

inline constexpr int kShift = 5, kLimit = 8;

template <int Keys>
struct Weights {
  u32 step[Keys / kStepKeys][4];  // 32 keys of row l / 4, then of row l / 4 + 8, in halves
};

// P = 2^(factor s - offset), and its sums. Returns whether a weight is 2^kLimit or more, or NaN.
template <class Sums, int Keys>
__device__ bool exponentiate(const Accumulator<16, Keys>& s, Weights<Keys>& p,
                             attn::RowStats<16>& stats, float factor) {
  using Exponential = attn::exponential::FusedExp2;
  static_assert(kLimit == 8, "0x78 is the code of 2^8");
  u32 large = 0;
  float sum[2] = {};
#pragma unroll
  for (int n = 0; n < Keys / kStepKeys; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int h = e % 2, j = 4 * n + e / 2 * 2;
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = Exponential::exp(s.v[0][j + i / 2][2 * h + i % 2], stats.offset[0][h], factor);
      Sums::add(sum[h], w[0], w[1], w[2], w[3]);
      p.step[n][e] = ptx::E4m3::pack(w[0], w[1], w[2], w[3]);
      large |= p.step[n][e] + 0x08080808;  // of a byte from 0x78 on, the sum has the top bit
    }
  stats.sum[0][0] += sum[0];
  stats.sum[0][1] += sum[1];
  return (large & 0x80808080) != 0;
}

// The maxima cover S, and S, the sums and the offsets are relative to them.
template <int Keys>
__device__ void raise(const attn::LaneMax<Keys>& lanes, Accumulator<16, Keys>& s,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  using Exponential = attn::exponential::FusedExp2;
  attn::raise_max<Exponential>(lanes, stats, factor.exact);
  attn::centre<Exponential>(s, stats, factor);
  stats.offset[0][0] -= kShift;
  stats.offset[0][1] -= kShift;
  stats.grew = true;
}

__device__ inline void keep_max(attn::RowStats<16>& stats, float factor) {
  attn::set_offsets<attn::exponential::FusedExp2>(stats, factor);
  stats.offset[0][0] -= kShift;
  stats.offset[0][1] -= kShift;
  stats.grew = false;
}

template <class Sums, int Keys>
__device__ void weigh(attn::Masked, Accumulator<16, Keys>& s, Weights<Keys>& p,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  constexpr float kMargin = kLimit - kShift - 0.25f;  // below kLimit after any rounding
  const attn::LaneMax<Keys> lanes(s);
  const bool covered = (lanes.of[0] - stats.max[0][0]) * factor.guess <= kMargin &&
                       (lanes.of[1] - stats.max[0][1]) * factor.guess <= kMargin;  // not NaN
  keep_max(stats, factor.guess);
  if (__any_sync(~0u, !covered)) raise(lanes, s, stats, factor);
  exponentiate<Sums>(s, p, stats, stats.grew ? factor.exact : factor.guess);
}

template <class Sums, int Keys>
__device__ void weigh(attn::Open, Accumulator<16, Keys>& s, Weights<Keys>& p,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  const float before[2] = {stats.sum[0][0], stats.sum[0][1]};
  keep_max(stats, factor.guess);
  if (!__any_sync(~0u, exponentiate<Sums>(s, p, stats, factor.guess))) return;
  stats.sum[0][0] = before[0];
  stats.sum[0][1] = before[1];
  raise(attn::LaneMax<Keys>(s), s, stats, factor);
  exponentiate<Sums>(s, p, stats, factor.exact);
}

}  // namespace fa::sm90::fp8
