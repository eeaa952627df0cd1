// SPDX-License-Identifier: Apache-2.0
// The rows of a tile are queries of one head, one after the other.
#pragma once
#include <fa/core.cuh>

namespace fa::attn::rows {

struct OneHead {
  static constexpr int kGroup = 1;  // heads in a tile

  static __device__ int position(int row) { return row; }
  static __device__ int head(int tile_head, int /*row*/) { return tile_head; }
};

}  // namespace fa::attn::rows
