// SPDX-License-Identifier: Apache-2.0
// The heads of all rows of a packed q, one after the other. All heads share a tile. cu_seqlens_q may be read
// while the kernel before runs, which reads it, too.
#pragma once
#include <fa/sm90/packed_tiles.cuh>
#include <fa/sm90/part_rows.cuh>

namespace fa::sm90::place {

class Packed {
 public:
  __device__ Packed(const ForwardKernelArgs& args, int index)
      : args_(args),
        head_(index % args.heads),
        row_(index / args.heads),
        batch_(sequence_at(row_, args.batch, [&](int batch) { return args.cu_seqlens_q[batch]; })) {
  }

  // Whether the row is a sequence's.
  __device__ bool exists() const {
    return position() >= 0 && row_ < args_.cu_seqlens_q[batch_ + 1];
  }
  __device__ int position() const { return row_ - args_.cu_seqlens_q[batch_]; }
  __device__ int head() const { return head_; }
  __device__ int batch() const { return batch_; }

  template <class Rows, int TileRows>
  static __device__ int tile(const ForwardKernelArgs& args, const PartRows<Rows, TileRows>&,
                             i64 batch, int /*head*/, int row) {
    return PackedTiles<Rows, TileRows>{args}.first(batch) + row / TileRows;
  }
  static __device__ i64 o_batch(i64 /*batch*/) { return 0; }
  static __device__ int o_row(const ForwardKernelArgs& args, i64 batch, int position) {
    return args.cu_seqlens_q[batch] + position;
  }

 private:
  const ForwardKernelArgs& args_;
  const int head_, row_, batch_;
};

}  // namespace fa::sm90::place
