// SPDX-License-Identifier: Apache-2.0
// Nothing to guard: tiles cover the tensors exactly, every head has its own K and V, every query sees
// every key, and only O is asked for.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/forward_args.cuh>

namespace fa::sm80::bounds {

struct Exact {
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

    template <int Rows>
    __device__ void finish(Accumulator<Rows, Config::kDHead>& o, const attn::RowStats<Rows>& stats,
                           int /*row*/) const {
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          Config::Normalise::row(o, i, h, attn::quad_sum(stats.sum[i][h]));
    }

   private:
    const ForwardKernelArgs& args_;
  };
};

}  // namespace fa::sm80::bounds
