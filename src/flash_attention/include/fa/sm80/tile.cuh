// SPDX-License-Identifier: Apache-2.0
// Where chunk (row, chunk) of a tile lives in shared memory. A tile that is narrower than a panel leaves
// the rest of its panel empty.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80 {

template <class Config, int Rows, int Columns = Config::kDHead>
struct Tile {
  using Layout = typename Config::Layout;
  static constexpr int kRows = Rows;
  static constexpr int kPaddedColumns = (Columns + 63) / 64 * 64;
  static constexpr int kBytes = Rows * kPaddedColumns * kElementBytes;
  static constexpr int kPanelChunks = Config::Panels::template kChunks<kPaddedColumns>;
  static constexpr int kRowBytes = kPanelChunks * kChunkBytes;
  static constexpr int kPanelBytes = Rows * kRowBytes;

  // Chunks of a row, and how many of them threads take side by side: a power of two, and with no more
  // than 128 threads still whole groups of eight rows a pass, as cursors step.
  static constexpr int kRowChunks = Columns / kChunkElements;
  static constexpr int kRunChunks = kRowChunks % 8 ? 4 : kRowChunks % 16 ? 8 : 16;

  static __device__ u32 offset(int row, int chunk) {
    return chunk / kPanelChunks * kPanelBytes + row * kRowBytes +
           Layout::place(row, chunk % kPanelChunks) * kChunkBytes;
  }
};

}  // namespace fa::sm80
