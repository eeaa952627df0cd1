// SPDX-License-Identifier: Apache-2.0
// Every key block raises the row maxima to its own, and O is rescaled every time.
#pragma once
#include <fa/attn/online.cuh>

namespace fa::attn::rescale {

struct EveryBlock {
  // S becomes P. Returns whether O must be rescaled by `shrink`, the same in all lanes of a warp.
  // `keys.release()` gives the block of keys up, whose scores S are.
  template <class Exponential, class DType, class Block, int Keys, class KeyBlock>
  static __device__ bool run(Block, Accumulator<16, Keys>& s, RowStats<16>& stats, Shrink& shrink,
                             float factor, KeyBlock keys) {
    keys.release();
    raise_max<Exponential>(LaneMax(s), stats, shrink, factor);
    exponentiate<Exponential, Masked>(s, stats, factor);
    return true;
  }
};

}  // namespace fa::attn::rescale
