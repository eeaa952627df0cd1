// SPDX-License-Identifier: Apache-2.0
// P or dS of a warp, rounded to 16 bits: pairs of neighbouring columns, as an accumulator has them.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm80::backward {

template <int Rows, int Columns>
struct Weights {
  u32 pair[Rows / 16][Columns / 8][2];

  // Columns 16 n .. 16 n + 15 as a left operand: the accumulator's lane map is the operand's.
  __device__ void fragment(u32 (&a)[4], int i, int n) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) a[e] = pair[i][2 * n + e / 2][e % 2];
  }

  // `quad` is at the first row of the lane's quad and the first chunk of columns.
  template <class Cursor>
  __device__ void store(const Cursor& quad) const {
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Columns / 8; ++j)
          ptx::st_shared_4(
              quad.at(16 * i + 8 * h, j) + lane_id() % 4 * static_cast<int>(sizeof(u32)),
              pair[i][j][h]);
  }
};

}  // namespace fa::sm80::backward
