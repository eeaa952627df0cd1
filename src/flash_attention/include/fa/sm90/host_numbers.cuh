// SPDX-License-Identifier: Apache-2.0
// Numbers that the host uses for launches, tensor maps and split-KV scratch memory. The host computes
// them and passes them in Config; these asserts check that the headers compute the same.
#pragma once
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

template <class Config, int SmemBytes>
__device__ constexpr bool check_host_numbers() {
  using Rows = typename Config::Rows;
  static_assert(Config::kWarpgroupRows == kWarpgroupRows && Config::kWarpRows == kWarpRows,
                "rows of a warpgroup and of a warp");
  static_assert(
      Config::kPanelColumns == 64 || Config::kPanelColumns == kTightColumns<Config::kDHead>,
      "columns of a panel");
  static_assert(Config::kSmemBytes == SmemBytes, "shared memory of a CTA");
  static_assert(Config::kTileRows == Shape<Config>::kBR, "rows of a tile");
  static_assert(Config::kQBoxHeads == Rows::kGroup, "heads of a box of Q");
  static_assert(Config::kQBoxHeads * Config::kQBoxQueries == Shape<Config>::kRows,
                "rows of a box of Q");
  static_assert(kWarpRows % Rows::kGroup ||  // no box of O is stored
                    (Config::kOBoxHeads == Rows::kGroup &&
                     Config::kOBoxHeads * Config::kOBoxQueries == kWarpRows),
                "rows of a box of O");
  static_assert(Config::kBoxKeys == Config::Pages::template kBoxKeys<Config::kBC>,
                "keys of a box of K or V");
  return true;
}

}  // namespace fa::sm90
