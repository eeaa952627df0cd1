// SPDX-License-Identifier: Apache-2.0
// Where chunk (row, chunk) of a Rows x d_head tile lives in shared memory.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80 {

template <class Config, int Rows>
struct Tile {
  using Layout = typename Config::Layout;
  static constexpr int kBytes = Rows * Config::kDHead * kElementBytes;
  static constexpr int kPanelChunks = Config::Panels::template kChunks<Config::kDHead>;
  static constexpr int kRowBytes = kPanelChunks * kChunkBytes;
  static constexpr int kPanelBytes = Rows * kRowBytes;

  static __device__ u32 offset(int row, int chunk) {
    return chunk / kPanelChunks * kPanelBytes + row * kRowBytes +
           Layout::place(row, chunk % kPanelChunks) * kChunkBytes;
  }
};

}  // namespace fa::sm80
