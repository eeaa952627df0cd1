// SPDX-License-Identifier: Apache-2.0
// Every key block updates the row maxima, and O is rescaled every time.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::attn::rescale {

struct EveryBlock {
  // P is never computed with the old maximum.
  template <class Exponential, class DType, class Block, int Keys, class ScoresAgain>
  static __device__ void guess(Block, Accumulator<16, Keys>&, RowStats<16>&, Factor&, ScoresAgain) {
  }

  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Factor& factor) {
    raise_max<Exponential>(LaneMax(s), stats, factor.exact);
    centre<Exponential>(s, stats, factor);
    exponentiate<Exponential>(s, stats, factor.exact);
    stats.grew = true;
  }
};

}  // namespace fa::attn::rescale
