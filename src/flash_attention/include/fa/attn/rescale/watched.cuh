// SPDX-License-Identifier: Apache-2.0
// Unmasked blocks compute no maximum: P is computed with the old one, and the row sums show afterwards
// whether P overflows its type or is NaN. Only then are the scores computed again.
#pragma once
#include <fa/attn/rescale/lazy.cuh>

namespace fa::attn::rescale {

template <int Threshold>
struct Watched {
  template <class Exponential, class DType, class Block, int Keys, class ScoresAgain>
  static __device__ void guess(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Factor& factor,
                               ScoresAgain scores_again) {
    if constexpr (!Block::kHidden) {
      RowStats<16> next = stats;
      next.sum[0][0] = next.sum[0][1] = 0.f;
      set_offsets<Exponential>(next, factor.guess);
      exponentiate<Exponential>(s, next, factor.guess);
      const bool fits =
          next.sum[0][0] <= DType::kLargestSum && next.sum[0][1] <= DType::kLargestSum;  // not NaN
      stats.grew = __any_sync(~0u, !fits);
      if (stats.grew) {
        scores_again(s);
        raise_max<Exponential>(LaneMax(s), stats, factor.exact);
        centre<Exponential>(s, stats, factor);
        exponentiate<Exponential>(s, stats, factor.exact);
      } else {
        stats.sum[0][0] += next.sum[0][0];
        stats.sum[0][1] += next.sum[0][1];
      }
    }
  }

  // In an unmasked block guess() has already made P, if need be with a new maximum.
  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                             Factor& factor) {
    if constexpr (Block::kHidden)
      Lazy<Threshold>::template run<Exponential>(block, s, stats, factor);
  }
};

}  // namespace fa::attn::rescale
