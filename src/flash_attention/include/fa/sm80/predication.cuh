// SPDX-License-Identifier: Apache-2.0
// The slot Predication: the rows and the key blocks of a CTA, and whether they fill their tiles.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/forward_args.cuh>
#include <fa/sm80/rows.cuh>

namespace fa::sm80 {

template <class T, class Config>
concept PredicationSlot = requires(const typename T::template Scope<Config>& scope, int step,
                                   Accumulator<16, Config::kBC>& s,
                                   Accumulator<16, Config::kDHead>& o, attn::RowStats<16> stats) {
  scope.empty();
  scope.first_row();
  scope.num_steps();
  scope.hide(s, step, scope.key(step));
  { scope.place(step, step) } -> Same<attn::Place>;
  { scope.function_hides(step) } -> Same<bool>;
  scope.finish(o, stats, step);
  requires TensorView<decltype(scope.q())> && TensorView<decltype(scope.k())>;
  requires TensorView<decltype(scope.v())> && TensorView<decltype(scope.o())>;
};

}  // namespace fa::sm80

namespace fa::sm80::predication {

// Nothing to guard: tiles cover the tensors exactly, every head has its own K and V, every query sees
// every key, no function changes scores, and only O is asked for.
struct Off {
  template <class Config>
  class Scope {
   public:
    // Rows of this CTA's batch and head.
    struct Tensor {
      const void* const first;
      const Strides& stride;

      __device__ i64 row_bytes() const {
        return Config::RowStride::elements(stride.seq) * kElementBytes;
      }
      __device__ const char* address(int row) const {
        return static_cast<const char*>(first) +
               (blockIdx.z * stride.batch + blockIdx.y * stride.head) * kElementBytes +
               row * row_bytes();
      }
      __device__ bool has(int /*row*/, int /*chunk*/) const { return true; }
      __device__ void load(u32 smem, const char* from, int /*row*/, int /*chunk*/) const {
        Config::Copy::template chunk<typename Config::Cache>(smem, from);
      }
    };

    __device__ explicit Scope(const ForwardKernelArgs& args) : args_(args) {}

    __device__ bool empty() const { return false; }
    __device__ int first_row() const { return blockIdx.x * Config::kBR; }
    __device__ int num_steps() const { return args_.seq_len_k / Config::kBC; }
    __device__ int key(int step) const {
      return Config::KvOrder::block(step, num_steps()) * Config::kBC;
    }

    __device__ const ForwardKernelArgs& args() const { return args_; }
    __device__ Tensor q() const { return {args_.q, args_.q_stride}; }
    __device__ Tensor k() const { return {args_.k, args_.k_stride}; }
    __device__ Tensor v() const { return {args_.v, args_.v_stride}; }
    __device__ Tensor o() const { return {args_.o, args_.o_stride}; }

    template <int Rows>
    __device__ void hide(Accumulator<Rows, Config::kBC>&, int /*row*/, int /*key*/) const {}
    __device__ attn::Place place(int /*row*/, int /*step*/) const { return {}; }
    __device__ bool function_hides(int /*step*/) const { return false; }

    template <int Rows>
    __device__ void finish(Accumulator<Rows, Config::kDHead>& o, const attn::RowStats<Rows>& stats,
                           int /*row*/) const {
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          Config::Normalise::row(o, i, h,
                                 attn::quad_sum(stats.sum[i][h]) / Config::Dropout::scale(args_));
    }

   private:
    const ForwardKernelArgs& args_;
  };
};

// Any lengths, heads and columns. The part of a tile outside its tensor is loaded as zeros and is not
// stored. Keys that a query does not see are masked. A row that sees no key has O = 0.
struct On {
  template <class Config>
  class Scope {
    using Mask = typename Config::Mask;

   public:
    using Tensor = PredicatedRows<Config>;

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

    // Where the scores of the rows from `row` on are, and whether a mask function may hide some of them.
    __device__ attn::Place place(int row, int step) const { return at(row, key(step)); }
    __device__ bool function_hides(int /*step*/) const { return true; }

    // The accumulator's first row is `row`. The first lane of a quad stores the log-sum-exp.
    template <int Rows>
    __device__ void finish(Accumulator<Rows, Config::kDHead>& o, const attn::RowStats<Rows>& stats,
                           int row) const {
      const float scale = attn::score_scale<Config>(args_);
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          attn::RowEnd end(attn::quad_sum(stats.sum[i][h]),
                           Config::Exponential::score(stats.max[i][h], scale));
          Config::Sinks::add(end, args_, blockIdx.y);
          Config::Normalise::row(o, i, h, end.divisor() / Config::Dropout::scale(args_));
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
    __device__ attn::Place at(int row, int key) const {
      return {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), row, key,
              Config::Function::ahead(args_, sequence_)};
    }

    const ForwardKernelArgs& args_;
    const Mask mask_;
    const attn::Sequence sequence_;
    const attn::KeyRange<Mask, Config::kBC> range_;
    const int kv_head_, first_block_, num_steps_;
  };
};

// As On, with keys in pages of `PageKeys` rows.
template <int PageKeys>
struct Paged {
  template <class Config>
  class Scope : public On::Scope<Config> {
    using Base = On::Scope<Config>;
    using Keys = PagedRows<Config, PageKeys>;

   public:
    using Base::Base;

    __device__ Keys k() const {
      return keys(this->args_.k, this->args_.k_stride, this->args_.d_qk);
    }
    __device__ Keys v() const { return keys(this->args_.v, this->args_.v_stride, this->args_.d_v); }

   private:
    __device__ Keys keys(const void* first, const Strides& stride, int columns) const {
      const int* const table =
          this->args_.block_table + blockIdx.z * this->args_.block_table_stride;
      return {first,   stride,           table, this->kv_head_, this->sequence_.k_len,
              columns, this->args_.pages};
    }
  };
};

}  // namespace fa::sm80::predication
