// SPDX-License-Identifier: Apache-2.0
// Chunks of a row follow each other: the eight rows of an ldmatrix phase fall in the same banks.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::layout {

struct RowMajor {
  static __device__ int place(int /*row*/, int chunk) { return chunk; }
  static __device__ u32 advance(u32 address, u32 bytes) { return address + bytes; }
};

}  // namespace fa::sm80::layout
