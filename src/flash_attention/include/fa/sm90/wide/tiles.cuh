// SPDX-License-Identifier: Apache-2.0
// The shared tiles of wide heads: Q, one block of K, one of V, and P of both warpgroups. The columns of K
// are loaded and released in parts, those of V in halves.
#pragma once
#include <fa/sm90/halves/shared_memory.cuh>

namespace fa::sm90::wide {

using halves::kHalves, halves::kStages;

template <class Config>
struct Tiles {
  static constexpr int kPartColumns = 128;
  static constexpr int kParts = (Config::kDHead + kPartColumns - 1) / kPartColumns;
  static constexpr int kLastColumns = Config::kDHead - (kParts - 1) * kPartColumns;
  static constexpr int kHalfColumns = Config::kDV / kHalves;
  using QTile = typename Shape<Config>::QTile;
  using KTile = typename Shape<Config>::KVTile;
  using PartTile = SharedTile<kPartColumns, Config::kBC>;
  using LastTile = SharedTile<kLastColumns, Config::kBC>;
  using HalfTile = SharedTile<kHalfColumns, Config::kBC>;
  using PTile = SharedTile<Config::kBC, kWarpgroupRows>;

  static_assert(LastTile::kPanelBytes == KTile::kPanelBytes &&
                    HalfTile::kPanelBytes == KTile::kPanelBytes,
                "a part of K and a half of V are whole panels");
};

}  // namespace fa::sm90::wide
