// SPDX-License-Identifier: Apache-2.0
// Key blocks from the first to the last.
#pragma once

namespace fa::attn::kv_order {

struct Ascending {
  static __device__ int block(int step, int) { return step; }
};

}  // namespace fa::attn::kv_order
