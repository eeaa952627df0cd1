// SPDX-License-Identifier: Apache-2.0
// The tile is cut into panels of 64 columns: a panel row is 128 bytes, all 32 banks once, and the
// eight chunks of a row use every value of the three swizzle bits.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::panels {

struct Columns64 {
  template <int DHead>
  static constexpr int kChunks = 64 / kChunkElements;
};

}  // namespace fa::sm80::panels
