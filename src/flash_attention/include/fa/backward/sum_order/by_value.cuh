// SPDX-License-Identifier: Apache-2.0
// The 32 lanes' first values of a fragment follow each other, then their second ones, and so on: an
// addition of one float a lane covers 128 contiguous bytes. Fragments of a row follow each other.
#pragma once
#include <fa/core.cuh>

namespace fa::backward::sum_order {

struct ByValue {
  // The place of the fragment of rows 16 tile and columns 8 column.
  template <int RowFragments>
  static __device__ int fragment(int tile, int column) {
    return tile * RowFragments + column;
  }
  // The place of a value that an accumulator's lane holds.
  static __device__ int offset(int lane, int value) { return value * kWarpSize + lane; }

  // Rows `octet` and `octet` + 8 of a fragment.
  static __device__ void read(float (&x)[2][8], const float* fragment, int octet) {
#pragma unroll
    for (int value = 0; value < 4; ++value) {
      const float4 lanes = reinterpret_cast<const float4*>(fragment)[value * 8 + octet];
      float* const to = x[value / 2] + value % 2;
      to[0] = lanes.x;
      to[2] = lanes.y;
      to[4] = lanes.z;
      to[6] = lanes.w;
    }
  }
};

}  // namespace fa::backward::sum_order
