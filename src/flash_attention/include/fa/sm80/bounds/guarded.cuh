// SPDX-License-Identifier: Apache-2.0
// Any lengths, heads and columns. The part of a tile outside its tensor is loaded as zeros and is not
// stored. Keys that a query does not see are masked. A row that sees no key has O = 0.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/attn/lse.cuh>
#include <fa/attn/rows/one_head.cuh>
#include <fa/sm80/guarded_rows.cuh>

namespace fa::sm80::bounds {

struct Guarded {
  template <class Config>
  class Scope {
    using Mask = typename Config::Mask;

   public:
    using Tensor = GuardedRows<Config>;

    __device__ explicit Scope(const ForwardKernelArgs& args)
        : args_(args),
          mask_(args),
          sequence_(Config::Lengths::sequence(args, blockIdx.z)),
          range_(mask_, first_row(), Config::kBR, sequence_),
          kv_head_(blockIdx.y / args.heads_per_kv),
          first_block_(range_.first_block()),
          num_steps_(max(range_.end_block() - first_block_, 1)) {}

    // The tile is beyond the queries of this sequence.
    __device__ bool empty() const { return first_row() >= sequence_.q_len; }
    // The last rows come first: with a causal mask they see the most keys.
    __device__ int first_row() const { return (gridDim.x - 1 - blockIdx.x) * Config::kBR; }
    // Rows that see no key visit one block, which is masked completely.
    __device__ int num_steps() const { return num_steps_; }
    __device__ int key(int step) const {
      return (first_block_ + Config::KvOrder::block(step, num_steps_)) * Config::kBC;
    }

    __device__ const ForwardKernelArgs& args() const { return args_; }
    __device__ Tensor q() const { return of_queries(args_.q, args_.q_stride, args_.d_qk); }
    __device__ Tensor k() const { return of_keys(args_.k, args_.k_stride, args_.d_qk); }
    __device__ Tensor v() const { return of_keys(args_.v, args_.v_stride, args_.d_v); }
    __device__ Tensor o() const { return of_queries(args_.o, args_.o_stride, args_.d_v); }

    template <int Rows>
    __device__ void hide(Accumulator<Rows, Config::kBC>& s, int row, int key) const {
      if (range_.hides(key / Config::kBC))
        attn::hide<attn::rows::OneHead>(s, mask_, row, key, sequence_);
    }

    // The accumulator's first row is `row`. The first lane of a quad stores the log-sum-exp.
    template <int Rows>
    __device__ void finish(Accumulator<Rows, Config::kDHead>& o, const attn::RowStats<Rows>& stats,
                           int row) const {
      const float scale = Config::Score::scale(args_);
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          attn::RowEnd end(attn::quad_sum(stats.sum[i][h]),
                           Config::Exponential::score(stats.max[i][h], scale));
          Config::Sinks::add(end, args_, blockIdx.y);
          Config::Normalise::row(o, i, h, end.divisor());
          const int lane_row = row + 16 * i + 8 * h + lane_id() / 4;
          if (args_.lse && lane_id() % 4 == 0 && lane_row < sequence_.q_len)
            lse_of_entry()[lane_row] = end.lse();
        }
    }

   private:
    __device__ Tensor of_queries(const void* first, const Strides& stride, int columns) const {
      return query_rows<Config>(first, stride, columns, sequence_, blockIdx.y);
    }
    __device__ Tensor of_keys(const void* first, const Strides& stride, int columns) const {
      return key_rows<Config>(first, stride, columns, sequence_, kv_head_);
    }
    __device__ float* lse_of_entry() const {
      return args_.lse + sequence_.q_batch * args_.lse_batch_stride +
             blockIdx.y * args_.lse_head_stride + sequence_.q_first;
    }

   protected:
    const ForwardKernelArgs& args_;
    const Mask mask_;
    const attn::Sequence sequence_;
    const attn::KeyRange<Mask, Config::kBC> range_;
    const int kv_head_, first_block_, num_steps_;
  };
};

}  // namespace fa::sm80::bounds
