// SPDX-License-Identifier: Apache-2.0
// A CTA owns keys of one head of K and V, and visits the queries that see them: block after block, for
// one query head of its group after the other. S and dP are transposed: a row is a key.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm80/rows.cuh>

namespace fa::sm80::backward::outer_loop {

struct KV {
  // The log-sum-exp or delta of queries in shared memory: a lane holds two neighbouring columns.
  struct Column {
    float of_column[2];
    __device__ float of(int /*i*/, int e) const { return of_column[e % 2]; }
  };

  template <class Config>
  class Scope {
    using Mask = typename Config::Mask;
    using Rows = PredicatedRows<Config>;
    static constexpr int kStatBytes = Config::kVisitedRows * sizeof(float);

   public:
    struct Place {
      int head, row;  // of the first visited query
    };
    static constexpr int kStageStatBytes = 2 * kStatBytes;
    static constexpr attn::RowsOf kRowsOf = attn::RowsOf::kKeys;

    __device__ explicit Scope(const BackwardKernelArgs& args)
        : args_(args),
          mask_(args),
          sequence_(Config::Lengths::sequence(args, blockIdx.z)),
          stat_row_(attn::first_stat_row(args, blockIdx.z)),
          range_(mask_, first_row(), Config::kOwnRows, sequence_),
          blocks_(range_.empty() ? 0 : range_.end_block() - range_.first_block()) {}

    __device__ bool empty() const { return first_row() >= sequence_.k_len; }
    __device__ int first_row() const { return blockIdx.x * Config::kOwnRows; }
    __device__ bool visits_any() const { return blocks_ > 0; }
    __device__ Place first() const {
      return {static_cast<int>(blockIdx.y) * args_.heads_per_kv, first_query()};
    }
    __device__ bool visits(const Place& place) const {
      return place.head < static_cast<int>(blockIdx.y + 1) * args_.heads_per_kv;
    }
    __device__ int head_of_all(const Place& place) const {
      return blockIdx.z * args_.heads + place.head;
    }
    __device__ Place after(const Place& place) const {
      const int row = place.row + Config::kVisitedRows;
      if (row < first_query() + blocks_ * Config::kVisitedRows) return {place.head, row};
      return {place.head + 1, first_query()};
    }

    __device__ const BackwardKernelArgs& args() const { return args_; }
    __device__ Rows own_s() const { return keys(args_.k, args_.k_stride, args_.d_qk); }
    __device__ Rows own_dp() const { return keys(args_.v, args_.v_stride, args_.d_v); }
    __device__ Rows visited_s(const Place& place) const {
      return queries(args_.q, args_.q_stride, args_.d_qk, place.head);
    }
    __device__ Rows visited_dp(const Place& place) const {
      return queries(args_.d_o, args_.d_o_stride, args_.d_v, place.head);
    }
    __device__ Rows ds_sum() const { return keys(args_.dk, args_.dk_stride, args_.d_qk); }
    __device__ Rows p_sum() const { return keys(args_.dv, args_.dv_stride, args_.d_v); }

    __device__ void load_stats(u32 stats, const Place& place) const {
      constexpr int kChunks = kStatBytes / kChunkBytes;
      if (threadIdx.x >= kChunks) return;
      const u32 to = stats + threadIdx.x * kChunkBytes;
      const i64 from = stat_row(place) + threadIdx.x * (kChunkBytes / sizeof(float));
      ptx::cp_async_16(to, args_.lse_log2 + from);
      ptx::cp_async_16(to + kStatBytes, args_.delta + from);
    }
    __device__ void hold_stats(int /*row*/) {}
    __device__ Column lse(u32 stats, int column) const { return read(stats, column); }
    __device__ Column delta(u32 stats, int column) const {
      return read(stats + kStatBytes, column);
    }

    // Scores of keys that a query does not see become -inf. The accumulator starts at key `row` and, in
    // its block, at query `column`.
    template <int TileRows, int Cols>
    __device__ void hide(Accumulator<TileRows, Cols>& s, int row, const Place& place,
                         int column) const {
      if (!range_.hides(place.row / Config::kVisitedRows)) return;
#pragma unroll
      for (int i = 0; i < TileRows / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = row + 16 * i + lane_id() / 4 + 8 * h;
          const int lane_query = place.row + column + 2 * (lane_id() % 4);
          const int first = key < sequence_.k_len ? mask_.first_query(key, sequence_) - lane_query
                                                  : Config::kVisitedRows;
          const int end = mask_.end_query(key, sequence_) - lane_query;
#pragma unroll
          for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (8 * j + e < first || (Mask::kHasStart && 8 * j + e >= end))
                s.v[i][j][2 * h + e] = -attn::kInfinity;
        }
    }

    // Where scores are, which start at own row `row` and, in the visited block, at `column`; and whether a mask
    // function may hide some of them.
    __device__ attn::Place at(int row, const Place& place, int column) const {
      return {static_cast<int>(blockIdx.z), place.head, place.row + column, row,
              Config::Function::ahead(args_, sequence_)};
    }
    __device__ bool function_hides(const Place&) const { return true; }

    // The sums of dQ of the visited head, from the first query of the sequence on.
    __device__ float* dq_sums(const Place& place) const {
      return args_.dq_sum + (stat_row(place) - place.row) * Config::kDHead;
    }

   private:
    __device__ int first_query() const { return range_.first_block() * Config::kVisitedRows; }
    __device__ i64 stat_row(const Place& place) const {
      return static_cast<i64>(place.head) * args_.stat_rows + stat_row_ + place.row;
    }
    __device__ Rows keys(const void* first, const Strides& stride, int columns) const {
      return key_rows<Config>(first, stride, columns, sequence_, blockIdx.y);
    }
    __device__ Rows queries(const void* first, const Strides& stride, int columns, int head) const {
      return query_rows<Config>(first, stride, columns, sequence_, head);
    }
    static __device__ Column read(u32 stats, int column) {
      const ptx::FloatPair pair = ptx::ld_shared_8(stats + (column + 2 * (lane_id() % 4)) *
                                                               static_cast<int>(sizeof(float)));
      return {{pair.x, pair.y}};
    }

    const BackwardKernelArgs& args_;
    const Mask mask_;
    const attn::Sequence sequence_;
    const int stat_row_;
    const attn::QueryRange<Mask, Config::kVisitedRows> range_;
    const int blocks_;  // of each head
  };
};

}  // namespace fa::sm80::backward::outer_loop
