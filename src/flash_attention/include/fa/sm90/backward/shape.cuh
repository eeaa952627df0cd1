// SPDX-License-Identifier: Apache-2.0
// The tiles of the backward pass in shared memory. A CTA has the keys of a tile; it visits blocks of
// queries. A key warpgroup has 64 of the keys, and a warp 16 of these.
#pragma once
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward {

inline constexpr int kWarps = kWarpgroupSize / kWarpSize;  // of a warpgroup
inline constexpr int kDqColumns = 64;  // of dQ that a warpgroup computes at a time, with 64 queries

template <class Config>
struct Shape {
  static constexpr int kKeyWarpgroups = Config::kBC / kWarpgroupRows;
  static constexpr int kKeyWarps = kKeyWarpgroups * kWarps;
  static constexpr int kQueryPieces = Config::kBR / kWarpgroupRows;  // of a product with 64 rows
  static constexpr int kDqPasses = kQueryPieces * (Config::kDHead / kDqColumns);
  static constexpr int kStatBytes = Config::kBR * static_cast<int>(sizeof(float));
  using KeyTile = SharedTile<Config::kDHead, Config::kBC>;    // K and V, then dK and dV
  using QueryTile = SharedTile<Config::kDHead, Config::kBR>;  // Q and dO
  using ScoreTile = SharedTile<Config::kBC, Config::kBR>;     // dS, a row for each query
};

// The 64 rows of a warpgroup.
template <class Tile>
__device__ Tile rows_of(Tile tile, int warpgroup) {
  return Tile(tile.address + warpgroup * kWarpgroupRows * Tile::kRowBytes);
}

}  // namespace fa::sm90::backward
