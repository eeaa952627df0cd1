// SPDX-License-Identifier: Apache-2.0
// A lane's four values of a fragment follow each other, then those of the next lane: 16 bytes a lane.
// The fragments of 64 rows follow each other column by column, as a warpgroup holds them.
#pragma once
#include <fa/core.cuh>

namespace fa::backward::sum_order {

struct ByLane {
  // The place of the fragment of rows 16 tile and columns 8 column.
  template <int RowFragments>
  static __device__ int fragment(int tile, int column) {
    return tile / 4 * 4 * RowFragments + column * 4 + tile % 4;
  }

  // Rows `octet` and `octet` + 8 of a fragment.
  static __device__ void read(float (&x)[2][8], const float* fragment, int octet) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const float4 values = reinterpret_cast<const float4*>(fragment)[4 * octet + lane];
      x[0][2 * lane] = values.x;
      x[0][2 * lane + 1] = values.y;
      x[1][2 * lane] = values.z;
      x[1][2 * lane + 1] = values.w;
    }
  }
};

}  // namespace fa::backward::sum_order
