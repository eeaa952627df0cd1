// SPDX-License-Identifier: Apache-2.0
// The numbers of the pages that hold a block of keys, shared out to the lanes of the warps that load it.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90 {

// How many keys a page and a key block have in common: the largest box that lies in one of both.
__device__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

// The page numbers of a lane's boxes in one block of keys. Lane l of the n-th of `Sharers` warps has the
// boxes l * Sharers + n, and those of 32 lanes on.
template <int PageKeys, int BlockKeys, int Sharers>
struct PageNumbers {
  static constexpr int kSharers = Sharers;
  static constexpr int kBoxKeys = common_divisor(PageKeys, BlockKeys);
  static constexpr int kBoxes = BlockKeys / kBoxKeys;
  static constexpr int kPerLane = (kBoxes + Sharers * kWarpSize - 1) / (Sharers * kWarpSize);

  int number[kPerLane];

  // Beyond the last key its page is loaded again; these rows are masked or cleared. There may be no block.
  __device__ void read(int block, int sharer, const int* table, int k_len) {
    if (block < 0) return;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int key = block * BlockKeys + box(i, sharer) * kBoxKeys;
      number[i] = table[min(key, k_len - 1) / PageKeys];
    }
  }

  static __device__ int box_of(int i, int lane, int sharer) {
    return (i * kWarpSize + lane) * Sharers + sharer;
  }
  static __device__ int box(int i, int sharer) { return box_of(i, lane_id(), sharer); }
  // The boxes of the n-th warp.
  static __device__ constexpr int count(int sharer) {
    return (kBoxes - sharer + Sharers - 1) / Sharers;
  }
};

}  // namespace fa::sm90
