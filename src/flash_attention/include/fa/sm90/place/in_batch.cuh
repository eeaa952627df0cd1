// SPDX-License-Identifier: Apache-2.0
// The rows of all heads of all sequences, one after the other, where q has a batch dimension.
#pragma once
#include <fa/sm90/part_rows.cuh>

namespace fa::sm90::place {

struct InBatch {
  const ForwardKernelArgs& args;
  const int index;

  __device__ bool exists() const { return true; }
  __device__ int position() const { return index % args.seq_len_q; }
  __device__ int head() const { return index / args.seq_len_q % args.heads; }
  __device__ int batch() const { return index / args.seq_len_q / args.heads; }

  template <class Rows, int TileRows>
  static __device__ int tile(const ForwardKernelArgs& args, const PartRows<Rows, TileRows>& rows,
                             i64 batch, int head, int row) {
    return (batch * (args.heads / Rows::kGroup) + head / Rows::kGroup) * rows.q_blocks() +
           row / TileRows;
  }
  static __device__ i64 o_batch(i64 batch) { return batch; }
  static __device__ int o_row(const ForwardKernelArgs&, i64 /*batch*/, int position) {
    return position;
  }
};

}  // namespace fa::sm90::place
