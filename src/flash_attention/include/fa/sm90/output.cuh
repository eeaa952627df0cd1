// SPDX-License-Identifier: Apache-2.0
// The slot Output: how O leaves the registers of a consumer, and when the next Q may be loaded.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

template <class Config>
class Consumer;

template <class T, class Config>
concept OutputSlot = requires(Consumer<Config>& consumer, const WarpOutput<Config>& warp,
                              const attn::RowEnds& ends) {
  { T::kOwnBuffer } -> Same<const bool&>;
  T::queries_read(consumer);
  T::store(consumer, warp, ends);
};

}  // namespace fa::sm90

namespace fa::sm90::output {

// O is staged where Q was; the next Q is loaded when the store has read it.
struct OverQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer>
  static __device__ void queries_read(Consumer&) {}

  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    warp.store_lse(ends);
    sync_warpgroup(consumer.warpgroup());  // all four warps' products have read Q
    stage_and_store(warp, consumer.q_tile(), consumer.o_map());
    if (lane_id() == 0) ptx::tma_wait_read();  // this warp's rows may be overwritten
    consumer.release_q();
  }
};

// O has its own buffer: the next Q is loaded as soon as the last scores are computed, and the
// store is waited for only before the next one.
struct OwnBuffer : OutsideQueries {
  static constexpr bool kOwnBuffer = true;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    warp.store_lse(ends);
    if (lane_id() == 0) ptx::tma_wait_read();  // this warp's rows of the previous tile were read
    __syncwarp();                              // and all lanes may write over them
    stage_and_store(warp, consumer.own_o_tile(), consumer.o_map());
  }
};

// O is stored from registers. The next Q is loaded as soon as the last scores are computed.
struct Direct : OutsideQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    const ForwardKernelArgs& args = warp.args;
    warp.store_lse(ends);
    warp.store_chunks([&](int r) {
      const i64 row = warp.sequence.q_batch * args.o_stride.batch +
                      warp.head(r) * args.o_stride.head +
                      (warp.sequence.q_first + warp.position(r)) * args.o_stride.seq;
      return static_cast<char*>(args.o) + row * kElementBytes;
    });
  }
};

}  // namespace fa::sm90::output

namespace fa::sm90 {

// Where the rows of a partial result are stored: partial results follow each other, each with the rows
// of its tile that can hold a query.
template <class Rows, int TileRows>
struct PartialRows {
  const int all;     // rows of one head, or of a group of heads that share a tile
  const int stored;  // of a tile

  __device__ explicit PartialRows(const ForwardKernelArgs& args)
      : all(args.seq_len_q * Rows::kGroup), stored(min(all, TileRows)) {}

  // `row` is one of `all`.
  __device__ i64 at(int part, int row) const {
    return static_cast<i64>(part) * stored + row % TileRows;
  }
  __device__ int q_blocks() const { return (all + TileRows - 1) / TileRows; }
};

}  // namespace fa::sm90

namespace fa::sm90::output {

// The partial O of a split in fp32 and its log-sum-exp, to be combined with the other splits.
struct Partial : OutsideQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer&, const Warp& warp, const attn::RowEnds& ends) {
    using Config = typename Warp::Config;
    const ForwardKernelArgs& args = warp.args;
    const PartialRows<typename Config::Rows, Shape<Config>::kBR> rows(args);
    const int part =
        Config::Splits::partial(tile_index<Config>(warp.tile, args), warp.tile.split, args);
    warp.store_pairs([&](int r, int h) {
      const i64 row = rows.at(part, warp.row(r));
      if (lane_id() % 4 == 0 && warp.stores_row_values()) args.lse_partial[row] = ends.row[h].lse();
      float* const to = ptx::computed_once(args.o_partial + row * args.d_v);
      return [to](int column, float x, float y) { ptx::st_global_8(to + column, x, y); };
    });
  }
};

}  // namespace fa::sm90::output
