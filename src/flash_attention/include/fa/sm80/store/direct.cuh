// SPDX-License-Identifier: Apache-2.0
// Lanes store the pairs they hold: a quad writes 16 bytes of a row, eight rows at a time.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::store {

struct Direct {
  template <class Block>
  static __device__ void run(const Block& b) {
    using Config = typename Block::Config;
    const int row = lane_id() / 4;
    char* const lane = b.output(row) + lane_id() % 4 * sizeof(u32);
#pragma unroll
    for (int i = 0; i < Block::kWarpRows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Config::kDHead / 8; ++j)
          if (b.has_output(row + 16 * i + 8 * h, j))
            Config::Cache::store(lane + (16 * i + 8 * h) * b.output_row_bytes() + j * kChunkBytes,
                                 b.output_pair(i, j, h));
  }
};

}  // namespace fa::sm80::store
