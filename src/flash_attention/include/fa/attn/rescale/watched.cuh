// SPDX-License-Identifier: Apache-2.0
// Open blocks take no maximum at all: P is guessed with the maximum known, and the sums tell
// afterwards whether a score was so much larger that P does not fit its type. Only then, or where the
// maximum is too large for an exact offset, are the scores computed once more, and the maximum raised.
#pragma once
#include <fa/attn/rescale/lazy.cuh>

namespace fa::attn::rescale {

template <int Threshold>
struct Watched {
  template <class Exponential, class DType, class Block, int Keys, class ScoresAgain>
  static __device__ void guess(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Shrink& shrink,
                               Factor& factor, bool& rescale, ScoresAgain scores_again) {
    if constexpr (!Block::kHidden) {
      RowStats<16> next = stats;
      next.sum[0][0] = next.sum[0][1] = 0.f;
      set_offsets<Exponential>(next, factor.guess);
      exponentiate<Exponential>(s, next, factor.guess);
      const bool fits =
          next.sum[0][0] <= DType::kLargestSum && next.sum[0][1] <= DType::kLargestSum;  // not NaN
      rescale = __any_sync(~0u, !fits);
      if (rescale) {
        scores_again(s);
        raise_max<Exponential>(LaneMax(s), stats, shrink, factor.exact);
        centre<Exponential>(s, stats, factor);
        exponentiate<Exponential>(s, stats, factor.exact);
      } else {
        stats.sum[0][0] += next.sum[0][0];
        stats.sum[0][1] += next.sum[0][1];
      }
    }
  }

  // In an open block the guess was right, or was put right.
  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block block, Accumulator<16, Keys>& s, RowStats<16>& stats,
                             Shrink& shrink, Factor& factor, bool& rescale) {
    if constexpr (Block::kHidden)
      Lazy<Threshold>::template run<Exponential>(block, s, stats, shrink, factor, rescale);
  }
};

}  // namespace fa::attn::rescale
