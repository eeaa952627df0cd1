// SPDX-License-Identifier: Apache-2.0
// The shared tiles of MLA decoding. A row of K is the latent vector, which is a row of V too, and the
// rotary columns. After the scores of a block nothing reads its rotary columns, so that P is written there.
#pragma once
#include <fa/sm90/halves/shared_memory.cuh>

namespace fa::sm90::mla {

using halves::kHalves, halves::kStages;

template <class Config>
struct Tiles {
  static constexpr int kHalfColumns = Config::kDV / kHalves;
  static constexpr int kRotaryColumns = Config::kDHead - Config::kDV;
  using QTile = typename Shape<Config>::QTile;
  using KTile = typename Shape<Config>::KVTile;
  using VTile = SharedTile<Config::kDV, Config::kBC>;
  using HalfTile = SharedTile<kHalfColumns, Config::kBC>;
  using RotaryTile = SharedTile<kRotaryColumns, Config::kBC>;
  using PTile = SharedTile<Config::kBC, kWarpgroupRows>;

  static_assert(HalfTile::kPanelBytes == KTile::kPanelBytes && kHalfColumns % KTile::kColumns == 0,
                "a half of V is whole panels of K");
  static_assert(PTile::kBytes <= RotaryTile::kBytes, "P fits where the rotary columns were");
};

}  // namespace fa::sm90::mla
