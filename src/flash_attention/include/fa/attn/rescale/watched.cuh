// SPDX-License-Identifier: Apache-2.0
// Open blocks take no maximum at all: P is computed with the maximum known, and the sums tell
// afterwards whether a score was so much larger that P does not fit its type. Only then are the
// scores computed once more, and the maximum raised.
#pragma once
#include <fa/attn/rescale/lazy.cuh>

namespace fa::attn::rescale {

template <int Threshold>
struct Watched {
  template <class Exponential, class DType, int Keys, class KeyBlock>
  static __device__ bool run(Masked block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                             Shrink& shrink, float factor, KeyBlock keys) {
    return Lazy<Threshold>::template run<Exponential, DType>(block, s, stats, shrink, factor, keys);
  }

  template <class Exponential, class DType, int Keys, class KeyBlock>
  static __device__ bool run(Open block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                             Shrink& shrink, float factor, KeyBlock keys) {
    RowStats<16> next = stats;
    next.sum[0][0] = next.sum[0][1] = 0.f;
    exponentiate<Exponential, Open>(s, next, factor);
    const bool fits =
        next.sum[0][0] <= DType::kLargestSum && next.sum[0][1] <= DType::kLargestSum;  // not NaN
    const bool rescale = __any_sync(~0u, !fits);
    if (rescale) {
      keys.scores_again(s);
      raise_max<Exponential>(LaneMax(s), stats, shrink, factor);
      exponentiate<Exponential, Masked>(s, stats, factor);
    } else {
      stats.sum[0][0] += next.sum[0][0];
      stats.sum[0][1] += next.sum[0][1];
    }
    keys.release();
    return rescale;
  }
};

}  // namespace fa::attn::rescale
