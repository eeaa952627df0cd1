// SPDX-License-Identifier: Apache-2.0
// Rows of any number of columns at any address, element by element.
#pragma once
#include <fa/ptx/memory.cuh>

namespace fa::cache::columns {

struct Elements {
  static __device__ ptx::Chunk load(const char* row, int chunk, int columns) {
    const auto* const from = reinterpret_cast<const unsigned short*>(row);
    const auto pair = [&](int i) {
      const int column = chunk * kChunkElements + 2 * i;
      const u32 low = column < columns ? from[column] : 0;
      return column + 1 < columns ? low | from[column + 1] << 16 : low;
    };
    return {pair(0), pair(1), pair(2), pair(3)};
  }
  static __device__ void store(char* row, int chunk, int columns, ptx::Chunk value) {
    auto* const to = reinterpret_cast<unsigned short*>(row);
    const u32 pairs[] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const int column = chunk * kChunkElements + i;
      if (column < columns) to[column] = pairs[i / 2] >> i % 2 * 16;
    }
  }
};

}  // namespace fa::cache::columns
