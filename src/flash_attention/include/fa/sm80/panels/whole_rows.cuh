// SPDX-License-Identifier: Apache-2.0
// A row of the tile is one run of d_head elements.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::panels {

struct WholeRows {
  template <int DHead>
  static constexpr int kChunks = DHead / kChunkElements;
};

}  // namespace fa::sm80::panels
