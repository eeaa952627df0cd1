// SPDX-License-Identifier: Apache-2.0
// Numbers that the host needs for launches, tensor maps and the memory of parts: it computes them and
// says them in Config, and they are what the headers make of the config.
#pragma once
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

template <class Config, int SmemBytes>
__device__ constexpr bool check_host_numbers() {
  using Rows = typename Config::Rows;
  static_assert(Config::kWarpgroupRows == kWarpgroupRows && Config::kWarpRows == kWarpRows,
                "rows of a warpgroup and of a warp");
  static_assert(Config::kPanelColumns == Panels<Config::kDHead>::kColumns, "columns of a panel");
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
