// SPDX-License-Identifier: Apache-2.0
// The softmax of a block: S becomes P in e4m3, the A operand of O += P V. The weight of a row's maximum is
// 2^kShift, so that small weights keep their bits, and weights may grow to 2^kLimit before the maximum is
// raised. Blocks without a mask compute no maximum: P is computed with the old one, and its bytes show
// whether a weight grew too large or is NaN. The scores are still in their registers then.
#pragma once
#include <fa/attn/exponential/fused_exp2.cuh>
#include <fa/attn/online.cuh>
#include <fa/sm90/fp8/four.cuh>
#include <fa/sm90/fp8/value_tile.cuh>

namespace fa::sm90::fp8 {

inline constexpr int kShift = 5, kLimit = 8;

template <int Keys>
struct Weights {
  u32 step[Keys / kStepKeys][4];  // 32 keys of row l / 4, then of row l / 4 + 8, in halves
};

// P = 2^(factor s - offset), and its sums. Returns whether a weight is 2^kLimit or more, or NaN.
template <class Config>
__device__ bool exponentiate(const Accumulator<16, Config::kBC>& s, Weights<Config::kBC>& p,
                             attn::RowStats<16>& stats, float factor) {
  using Powers = typename Config::Powers;
  static_assert(kLimit == 8, "what Powers watch for");
  typename Powers::Watch watch;
  float sum[2] = {};
#pragma unroll
  for (int n = 0; n < Config::kBC / 16; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Four scores = Config::Values::scores(s, n, h);
      p.step[n / 2][n % 2 * 2 + h] = Powers::template weights<typename Config::Sums>(
          n, scores.v, stats.offset[0][h], factor, sum[h], watch);
    }
  stats.sum[0][0] += sum[0];
  stats.sum[0][1] += sum[1];
  return watch.large();
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

template <class Config, int Keys>
__device__ void weigh(attn::Masked, Accumulator<16, Keys>& s, Weights<Keys>& p,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  constexpr float kMargin = kLimit - kShift - 0.25f;  // below kLimit after any rounding
  const attn::LaneMax<Keys> lanes(s);
  const bool covered = (lanes.of[0] - stats.max[0][0]) * factor.guess <= kMargin &&
                       (lanes.of[1] - stats.max[0][1]) * factor.guess <= kMargin;  // not NaN
  keep_max(stats, factor.guess);
  if (__any_sync(~0u, !covered)) raise(lanes, s, stats, factor);
  exponentiate<Config>(s, p, stats, stats.grew ? factor.exact : factor.guess);
}

template <class Config, int Keys>
__device__ void weigh(attn::Open, Accumulator<16, Keys>& s, Weights<Keys>& p,
                      attn::RowStats<16>& stats, attn::Factor& factor) {
  const float before[2] = {stats.sum[0][0], stats.sum[0][1]};
  keep_max(stats, factor.guess);
  if (!__any_sync(~0u, exponentiate<Config>(s, p, stats, factor.guess))) return;
  stats.sum[0][0] = before[0];
  stats.sum[0][1] = before[1];
  raise(attn::LaneMax<Keys>(s), s, stats, factor);
  exponentiate<Config>(s, p, stats, factor.exact);
}

}  // namespace fa::sm90::fp8
