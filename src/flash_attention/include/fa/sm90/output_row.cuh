// SPDX-License-Identifier: Apache-2.0
// The slot Place: which query of which head a CTA of the combine kernel has.
#pragma once
#include <fa/sm90/output.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// Which query of which head a CTA combines.
template <class T, class PartialRows>
concept OutputRowSlot =
    requires(const T& place, const ForwardKernelArgs& args, const PartialRows& rows) {
      { place.exists() } -> Same<bool>;
      { place.position() } -> Same<int>;
      { place.head() } -> Same<int>;
      { place.batch() } -> Same<int>;
      { T::tile(args, rows, 0, 0, 0) } -> Same<int>;
      { T::o_batch(0) } -> Same<i64>;
      { T::o_row(args, 0, 0) } -> Same<int>;
    };

}  // namespace fa::sm90

namespace fa::sm90::output_row {

// The rows of all heads of all sequences, one after the other, where q has a batch dimension.
struct InBatch {
  const ForwardKernelArgs& args;
  const int index;

  __device__ bool exists() const { return true; }
  __device__ int position() const { return index % args.seq_len_q; }
  __device__ int head() const { return index / args.seq_len_q % args.heads; }
  __device__ int batch() const { return index / args.seq_len_q / args.heads; }

  template <class Rows, int TileRows>
  static __device__ int tile(const ForwardKernelArgs& args, const PartialRows<Rows, TileRows>& rows,
                             i64 batch, int head, int row) {
    return (batch * (args.heads / Rows::kGroup) + head / Rows::kGroup) * rows.q_blocks() +
           row / TileRows;
  }
  static __device__ i64 o_batch(i64 batch) { return batch; }
  static __device__ int o_row(const ForwardKernelArgs&, i64 /*batch*/, int position) {
    return position;
  }
};

// The heads of all rows of a packed q, one after the other. All heads share a tile. cu_seqlens_q may be read
// while the kernel before runs, which reads it, too.
class Packed {
 public:
  __device__ Packed(const ForwardKernelArgs& args, int index)
      : args_(args),
        head_(index % args.heads),
        row_(index / args.heads),
        batch_(attn::sequence_at(row_, args.batch,
                                 [&](int batch) { return args.cu_seqlens_q[batch]; })) {}

  // Whether the row is a sequence's.
  __device__ bool exists() const {
    return position() >= 0 && row_ < args_.cu_seqlens_q[batch_ + 1];
  }
  __device__ int position() const { return row_ - args_.cu_seqlens_q[batch_]; }
  __device__ int head() const { return head_; }
  __device__ int batch() const { return batch_; }

  template <class Rows, int TileRows>
  static __device__ int tile(const ForwardKernelArgs& args, const PartialRows<Rows, TileRows>&,
                             i64 batch, int /*head*/, int row) {
    const attn::PackedBlocks<TileRows / Rows::kGroup> tiles{args.cu_seqlens_q, args.seq_len_q,
                                                            args.batch};
    return tiles.first(batch) + row / TileRows;
  }
  static __device__ i64 o_batch(i64 /*batch*/) { return 0; }
  static __device__ int o_row(const ForwardKernelArgs& args, i64 batch, int position) {
    return args.cu_seqlens_q[batch] + position;
  }

 private:
  const ForwardKernelArgs& args_;
  const int head_, row_, batch_;
};

}  // namespace fa::sm90::output_row
