// SPDX-License-Identifier: Apache-2.0
// A sum is stored from the registers that hold it, in pairs: a quad of lanes has 16 bytes of a row.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::backward::store {

struct Direct {
  template <class Block, class Rows, class Sum>
  static __device__ void run(const Block& b, u32 /*tile*/, const Rows& rows, const Sum& sum,
                             float factor) {
#pragma unroll
    for (int i = 0; i < Sum::kRowFragments; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = b.first_row() + b.warp_row() + 16 * i + 8 * h + lane_id() / 4;
        char* const to = const_cast<char*>(rows.address(row)) + lane_id() % 4 * sizeof(u32);
#pragma unroll
        for (int j = 0; j < Sum::kColFragments; ++j)
          if (rows.has(row, b.sum_chunk(j)))
            Block::Config::Cache::store(to + b.sum_chunk(j) * kChunkBytes,
                                        b.pair(sum, i, j, h, factor));
      }
  }
};

}  // namespace fa::sm80::backward::store
