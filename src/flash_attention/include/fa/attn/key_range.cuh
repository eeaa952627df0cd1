// SPDX-License-Identifier: Apache-2.0
// Which key blocks a run of query rows visits, from the last to the first, and which of them hold
// keys that some of the rows do not see. A mask is a prefix: row r sees the keys below
// visible_keys(r), which never falls as r grows.
#pragma once
#include <fa/core.cuh>

namespace fa::attn {

template <class Mask, int BlockKeys>
struct KeyRange {
  int first_row;     // of the run
  int seq_len_q, seq_len_k;
  int fewest, most;  // keys that the first and the last row see

  __device__ KeyRange(int first_row, int num_rows, int seq_len_q, int seq_len_k)
      : first_row(first_row),
        seq_len_q(seq_len_q),
        seq_len_k(seq_len_k),
        fewest(visible(first_row)),
        most(visible(min(first_row + num_rows, seq_len_q) - 1)) {}

  __device__ int visible(int row) const {
    return Mask::visible_keys(row, seq_len_q, seq_len_k);
  }
  __device__ int num_blocks() const { return (most + BlockKeys - 1) / BlockKeys; }

  // Some row has not seen a key before this block, or does not see all of it.
  __device__ bool masked(int block) const { return (block + 1) * BlockKeys >= fewest; }
};

// S of the tile whose first row is `row` and first key `key`: what a row does not see becomes -inf.
template <class Range, int Cols>
__device__ void hide(Accumulator<16, Cols>& s, const Range& range, int row, int key) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int limit = range.visible(row + lane_id() / 4 + 8 * h) - key - 2 * (lane_id() % 4);
#pragma unroll
    for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + e >= limit) s.v[0][j][2 * h + e] = -__int_as_float(0x7f800000);
  }
}

}  // namespace fa::attn
