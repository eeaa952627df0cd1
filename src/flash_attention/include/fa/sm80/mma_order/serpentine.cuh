// SPDX-License-Identifier: Apache-2.0
// Products of one step column by column, with rows alternately up and down: consecutive products share
// an operand, which stays in the operand cache.
#pragma once

namespace fa::sm80::mma_order {

struct Serpentine {
  template <int RowFragments, int ColFragments, class Mma>
  static __device__ void run(Mma mma) {
#pragma unroll
    for (int j = 0; j < ColFragments; ++j)
#pragma unroll
      for (int t = 0; t < RowFragments; ++t) mma(j % 2 ? RowFragments - 1 - t : t, j);
  }
};

}  // namespace fa::sm80::mma_order
