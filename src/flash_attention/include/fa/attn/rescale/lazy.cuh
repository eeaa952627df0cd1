// SPDX-License-Identifier: Apache-2.0
// The old maximum is kept until a score exceeds it by a factor of more than 2^Threshold. P is then at
// most 2^Threshold, and almost no block rescales O. The lanes of a quad exchange their maxima only if
// one of the warp's rows needs a new maximum.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::attn::rescale {

template <int Threshold>
struct Lazy {
  // P is never computed before the maximum is checked.
  template <class Exponential, class DType, class Block, int Keys, class ScoresAgain>
  static __device__ void guess(Block, Accumulator<16, Keys>&, RowStats<16>&, Factor&, ScoresAgain) {
  }

  template <class Exponential, class Block, int Keys>
  static __device__ void run(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Factor& factor) {
    const LaneMax<Keys> lanes(s);
    const bool covered = (lanes.of[0] - stats.max[0][0]) * factor.guess <= Threshold &&
                         (lanes.of[1] - stats.max[0][1]) * factor.guess <= Threshold;  // not NaN
    stats.grew = __any_sync(~0u, !covered);
    set_offsets<Exponential>(stats, factor.guess);
    if (stats.grew) {
      raise_max<Exponential>(lanes, stats, factor.exact);
      centre<Exponential>(s, stats, factor);
    }
    exponentiate<Exponential>(s, stats, stats.grew ? factor.exact : factor.guess);
  }
};

}  // namespace fa::attn::rescale
