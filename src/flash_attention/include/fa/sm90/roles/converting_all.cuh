// SPDX-License-Identifier: Apache-2.0
// Q of 8 bits is converted, too, by the warps that convert K and V.
#pragma once
#include <fa/sm90/roles/converting.cuh>

namespace fa::sm90::roles {

struct ConvertingAll : Converting {
  static constexpr bool kConvertsQueries = true;
};

}  // namespace fa::sm90::roles
