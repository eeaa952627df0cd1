// SPDX-License-Identifier: Apache-2.0
// Which key blocks a run of query rows visits, from the last to the first, and which of them hold
// keys that some of the rows do not see. A mask is a prefix: row r sees the keys below
// visible_keys(r), which never falls as r grows.
#pragma once
#include <fa/kernel_args.cuh>

namespace fa::attn {

template <class Mask, int BlockKeys>
struct KeyRange {
  int fewest, most;  // keys that the first and the last of the rows see

  KeyRange() = default;
  __device__ KeyRange(int first_row, int num_rows, const ForwardKernelArgs& args)
      : fewest(Mask::visible_keys(first_row, args.seq_len_q, args.seq_len_k)),
        most(Mask::visible_keys(min(first_row + num_rows, args.seq_len_q) - 1, args.seq_len_q,
                                args.seq_len_k)) {}

  __device__ int num_blocks() const { return (most + BlockKeys - 1) / BlockKeys; }

  // Some row has not seen a key before this block, or does not see all of it.
  __device__ bool masked(int block) const { return (block + 1) * BlockKeys >= fewest; }
};

// S of the tile whose first row is `row` and first key `key`: what a row does not see becomes -inf.
template <class Mask, int Cols>
__device__ void hide(Accumulator<16, Cols>& s, int row, int key, const ForwardKernelArgs& args) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int visible =
        Mask::visible_keys(row + lane_id() / 4 + 8 * h, args.seq_len_q, args.seq_len_k);
    const int limit = visible - key - 2 * (lane_id() % 4);
#pragma unroll
    for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + e >= limit) s.v[0][j][2 * h + e] = -__int_as_float(0x7f800000);
  }
}

}  // namespace fa::attn
