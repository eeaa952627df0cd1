// SPDX-License-Identifier: Apache-2.0
// A CTA owns queries of one head, and visits the keys that they see. A row of S and dP is a query, whose
// log-sum-exp and delta stay in registers.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm80/rows.cuh>

namespace fa::sm80::backward::outer_loop {

struct Q {
  // The log-sum-exp or delta of a lane's rows.
  template <int TileRows>
  struct OfRows {
    float of_row[TileRows / 16][2];
    __device__ float of(int i, int e) const { return of_row[i][e / 2]; }

    __device__ void read(const float* first) {
#pragma unroll
      for (int i = 0; i < TileRows / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) of_row[i][h] = first[16 * i + 8 * h + lane_id() / 4];
    }
  };

  template <class Config>
  class Scope {
    using Mask = typename Config::Mask;
    using Rows = PredicatedRows<Config>;
    static constexpr int kWarpRows = Config::kOwnRows * Config::kColumnWarps / Config::kNWarps;

   public:
    struct Place {
      int row;  // the first visited key
    };
    static constexpr int kStageStatBytes = 0;
    static constexpr attn::RowsOf kRowsOf = attn::RowsOf::kQueries;

    __device__ explicit Scope(const BackwardKernelArgs& args)
        : args_(args),
          mask_(args),
          sequence_(Config::Lengths::sequence(args, blockIdx.z)),
          range_(mask_, first_row(), Config::kOwnRows, sequence_) {}

    __device__ bool empty() const { return first_row() >= sequence_.q_len; }
    // The last rows come first: with a causal mask they see the most keys.
    __device__ int first_row() const { return (gridDim.x - 1 - blockIdx.x) * Config::kOwnRows; }
    __device__ bool visits_any() const { return visits(first()); }
    __device__ Place first() const { return {range_.first_block() * Config::kVisitedRows}; }
    __device__ bool visits(const Place& place) const {
      return place.row < range_.end_block() * Config::kVisitedRows;
    }
    __device__ int head_of_all(const Place&) const { return blockIdx.z * args_.heads + blockIdx.y; }
    __device__ Place after(const Place& place) const { return {place.row + Config::kVisitedRows}; }

    __device__ const BackwardKernelArgs& args() const { return args_; }
    __device__ Rows own_s() const { return queries(args_.q, args_.q_stride, args_.d_qk); }
    __device__ Rows own_dp() const { return queries(args_.d_o, args_.d_o_stride, args_.d_v); }
    __device__ Rows visited_s(const Place&) const {
      return keys(args_.k, args_.k_stride, args_.d_qk);
    }
    __device__ Rows visited_dp(const Place&) const {
      return keys(args_.v, args_.v_stride, args_.d_v);
    }
    __device__ Rows ds_sum() const { return queries(args_.dq, args_.dq_stride, args_.d_qk); }

    __device__ void load_stats(u32, const Place&) const {}
    __device__ void hold_stats(int row) {
      const i64 first = static_cast<i64>(blockIdx.y) * args_.stat_rows +
                        attn::first_stat_row(args_, blockIdx.z) + row;
      lse_.read(args_.lse_log2 + first);
      delta_.read(args_.delta + first);
    }
    __device__ const OfRows<kWarpRows>& lse(u32, int) const { return lse_; }
    __device__ const OfRows<kWarpRows>& delta(u32, int) const { return delta_; }

    template <int TileRows, int Cols>
    __device__ void hide(Accumulator<TileRows, Cols>& s, int row, const Place& place,
                         int column) const {
      if (range_.hides(place.row / Config::kVisitedRows))
        attn::hide<attn::rows::OneHead>(s, mask_, row, place.row + column, sequence_);
    }

    // Where scores are, which start at own row `row` and, in the visited block, at `column`; and whether a mask
    // function may hide some of them.
    __device__ attn::Place at(int row, const Place& place, int column) const {
      return {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), row, place.row + column,
              Config::Function::ahead(args_, sequence_)};
    }
    __device__ bool function_hides(const Place&) const { return true; }

   private:
    __device__ Rows queries(const void* first, const Strides& stride, int columns) const {
      return query_rows<Config>(first, stride, columns, sequence_, blockIdx.y);
    }
    __device__ Rows keys(const void* first, const Strides& stride, int columns) const {
      return key_rows<Config>(first, stride, columns, sequence_, blockIdx.y / args_.heads_per_kv);
    }

    const BackwardKernelArgs& args_;
    const Mask mask_;
    const attn::Sequence sequence_;
    const attn::KeyRange<Mask, Config::kVisitedRows> range_;
    OfRows<kWarpRows> lse_, delta_;
  };
};

}  // namespace fa::sm80::backward::outer_loop
