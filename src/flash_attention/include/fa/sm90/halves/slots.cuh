// SPDX-License-Identifier: Apache-2.0
// The slots of kernels whose two consumer warpgroups share rows, and the numbers that the host uses for
// launches and tensor maps. The host computes them and passes them in Config; these asserts check that the
// headers compute the same.
#pragma once
#include <fa/sm90/slots.cuh>

namespace fa::sm90::halves {

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(sm90::check_slots<Config>());
  static_assert(
      PagesSlot<typename Config::Pages, Config>,
      "Pages: kBoxKeys<Keys>, load(tile, map, full, kv_head, key, batch, sequence, args, column)");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  return true;
}

template <class Config, int SmemBytes>
__device__ constexpr bool check_host_numbers() {
  static_assert(Config::kSmemBytes == SmemBytes, "shared memory of a CTA");
  static_assert(Config::kTileRows == Shape<Config>::kBR, "rows of a tile");
  static_assert(Config::kQBoxHeads * Config::kQBoxQueries == Shape<Config>::kRows,
                "rows of a box of Q");
  static_assert(Config::kPanelColumns == kTightColumns<Config::kDHead>, "columns of a box");
  static_assert(Config::kBoxKeys == Config::Pages::template kBoxKeys<Config::kBC>,
                "keys of a box of K or V");
  return true;
}

}  // namespace fa::sm90::halves
