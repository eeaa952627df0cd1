// SPDX-License-Identifier: Apache-2.0
// Products of one step row by row: each row fragment is multiplied with all columns.
#pragma once

namespace fa::sm80::mma_order {

struct RowMajor {
  template <int RowFragments, int ColFragments, class Mma>
  static __device__ void run(Mma mma) {
#pragma unroll
    for (int i = 0; i < RowFragments; ++i)
#pragma unroll
      for (int j = 0; j < ColFragments; ++j) mma(i, j);
  }
};

}  // namespace fa::sm80::mma_order
