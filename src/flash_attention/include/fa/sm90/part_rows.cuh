// SPDX-License-Identifier: Apache-2.0
// Where the rows of a partial result are stored: partial results follow each other, each with the rows
// of its tile that can hold a query.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm90 {

template <class Rows, int TileRows>
struct PartRows {
  const int all;     // rows of one head, or of a group of heads that share a tile
  const int stored;  // of a tile

  __device__ explicit PartRows(const ForwardKernelArgs& args)
      : all(args.seq_len_q * Rows::kGroup), stored(min(all, TileRows)) {}

  // `row` is one of `all`.
  __device__ i64 at(int part, int row) const {
    return static_cast<i64>(part) * stored + row % TileRows;
  }
  __device__ int q_blocks() const { return (all + TileRows - 1) / TileRows; }
};

}  // namespace fa::sm90
