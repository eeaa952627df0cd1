// SPDX-License-Identifier: Apache-2.0
// Key blocks from the last to the first: the end of the walk is block 0, a constant.
#pragma once

namespace fa::attn::kv_order {

struct Descending {
  static __device__ int block(int step, int num_blocks) { return num_blocks - 1 - step; }
};

}  // namespace fa::attn::kv_order
