// SPDX-License-Identifier: Apache-2.0
// Global to shared memory: a tile of a tensor's rows from `first` on. Threads take the chunks of a row
// side by side, then the next rows.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80 {

template <class Config, class Tile, class Tensor>
__device__ void load_tile(u32 tile, const Tensor& tensor, int first) {
  constexpr int kRowsPerPass = Config::kNWarps * kWarpSize / Tile::kRunChunks;
  static_assert(kRowsPerPass <= Tile::kRows, "threads load no more rows at a time than a tile has");
  const int row = threadIdx.x / Tile::kRunChunks, chunk = threadIdx.x % Tile::kRunChunks;
  const typename Config::Address::template Cursor<Tile> thread(tile, row, chunk);
#pragma unroll
  for (int c = 0; c < Tile::kRowChunks; c += Tile::kRunChunks) {
    const char* source = tensor.address(first + row) + (chunk + c) * kChunkBytes;
#pragma unroll
    for (int r = 0; r < Tile::kRows; r += kRowsPerPass) {
      tensor.load(thread.at(r, c), source, first + row + r, chunk + c);
      source += kRowsPerPass * tensor.row_bytes();
    }
  }
}

}  // namespace fa::sm80
