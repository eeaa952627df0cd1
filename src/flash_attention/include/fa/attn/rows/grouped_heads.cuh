// SPDX-License-Identifier: Apache-2.0
// All heads that share a head of K and V share a tile: row r is head r % Group of query r / Group. A
// few queries then fill a tile, and K and V are read once for all of these heads.
#pragma once
#include <fa/core.cuh>

namespace fa::attn::rows {

template <int Group>
struct GroupedHeads {
  static constexpr int kGroup = Group;

  static __device__ int position(int row) { return row / Group; }
  static __device__ int head(int tile_head, int row) { return tile_head * Group + row % Group; }
};

}  // namespace fa::attn::rows
