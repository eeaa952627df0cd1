// SPDX-License-Identifier: Apache-2.0
// The slot KvOrder: in which order key blocks are visited.
#pragma once

namespace fa::attn {

template <class T>
concept KvOrderSlot = requires(int step) { T::block(step, step); };

}  // namespace fa::attn

namespace fa::attn::kv_order {

// Key blocks from the first to the last.
struct Ascending {
  static __device__ int block(int step, int) { return step; }
};

// Key blocks from the last to the first: the end of the walk is block 0, a constant.
struct Descending {
  static __device__ int block(int step, int num_blocks) { return num_blocks - 1 - step; }
};

}  // namespace fa::attn::kv_order
