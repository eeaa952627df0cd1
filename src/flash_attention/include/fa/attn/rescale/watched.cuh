// SPDX-License-Identifier: Apache-2.0
// Open blocks take no maximum at all: P is guessed with the maximum known, and the sums tell
// afterwards whether a score was so much larger that P does not fit its type. Only then are the
// scores computed once more, and the maximum raised.
#pragma once
#include <fa/attn/rescale/lazy.cuh>

namespace fa::attn::rescale {

template <int Threshold>
struct Watched {
  template <class Exponential, class DType, int Keys, class ScoresAgain>
  static __device__ void guess(Masked, Accumulator<16, Keys>&, RowStats<16>&, Shrink&, float, bool&,
                               ScoresAgain) {}

  template <class Exponential, class DType, int Keys, class ScoresAgain>
  static __device__ void guess(Open, Accumulator<16, Keys>& s, RowStats<16>& stats, Shrink& shrink,
                               float factor, bool& rescale, ScoresAgain scores_again) {
    RowStats<16> next = stats;
    next.sum[0][0] = next.sum[0][1] = 0.f;
    exponentiate<Exponential, Open>(s, next, factor);
    const bool fits =
        next.sum[0][0] <= DType::kLargestSum && next.sum[0][1] <= DType::kLargestSum;  // not NaN
    rescale = __any_sync(~0u, !fits);
    if (rescale) {
      scores_again(s);
      raise_max<Exponential>(LaneMax(s), stats, shrink, factor);
      exponentiate<Exponential, Masked>(s, stats, factor);
    } else {
      stats.sum[0][0] += next.sum[0][0];
      stats.sum[0][1] += next.sum[0][1];
    }
  }

  template <class Exponential, int Keys>
  static __device__ void run(Masked block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                             Shrink& shrink, float factor, bool& rescale) {
    Lazy<Threshold>::template run<Exponential>(block, s, stats, shrink, factor, rescale);
  }

  // The guess was right, or was put right.
  template <class Exponential, int Keys>
  static __device__ void run(Open, Accumulator<16, Keys>&, RowStats<16>&, Shrink&, float, bool&) {}
};

}  // namespace fa::attn::rescale
