// SPDX-License-Identifier: Apache-2.0
// The chunk index is XORed with the row modulo 8: no two rows of an ldmatrix phase share a bank.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::layout {

struct XorSwizzle {
  static __device__ int place(int row, int chunk) { return chunk ^ (row % 8); }
  static __device__ u32 advance(u32 address, u32 bytes) { return address ^ bytes; }
};

}  // namespace fa::sm80::layout
