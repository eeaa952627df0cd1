// SPDX-License-Identifier: Apache-2.0
// A row of O from the split-KV partial results of its tile; their weights are the exponentials of their
// log-sum-exps. A sink is added to the denominator only. A lane has four columns.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/output.cuh>
#include <fa/sm90/output_row.cuh>

namespace fa::sm90 {

// `Tensors` says which tile a row is in, and which row of O it is.
template <class Config, class Tensors = output_row::InBatch>
class CombinedRow {
  static constexpr int kGroup = Config::Rows::kGroup;

 public:
  static constexpr int kColumns = 4 * kWarpSize;  // at a time
  static constexpr int kSums = 4;  // every fourth partial result is added to one of these sums

  // `place` says which query of which head the row is.
  template <class Place>
  __device__ CombinedRow(const ForwardKernelArgs& args, const Place& place)
      : args_(args),
        rows_(args),
        position_(place.position()),
        head_(place.head()),
        batch_(place.batch()),
        row_(position_ * kGroup + head_ % kGroup),
        tile_(Tensors::tile(args, rows_, batch_, head_, row_)),
        first_(Config::Splits::first_split(tile_, args)),
        end_(Config::Splits::end_split(tile_, args)) {}

  // The weights are exp(lse - offset) / sum. The lanes share the partial results.
  struct Weights {
    float max, offset, sum;
    __device__ float inverse() const { return sum == 0.f ? 0.f : 1.f / sum; }
  };
  __device__ Weights weights() const {
    const float sink = args_.sinks ? args_.sinks[head_] : -attn::kInfinity;
    float max = sink;
    for (int split = first_ + lane_id(); split < end_; split += kWarpSize)
      max = fmaxf(max, lse_of(split));
    max = attn::lanes_max<kWarpSize>(max);
    const float offset = max == -attn::kInfinity ? 0.f : max;
    float sum = 0.f;
    for (int split = first_ + lane_id(); split < end_; split += kWarpSize)
      sum += weight_of(lse_of(split), offset);
    return {max, offset, attn::lanes_sum<kWarpSize>(sum) + weight_of(sink, offset)};
  }

  // The n-th sum, for a lane's columns of every chunk.
  template <int Chunks>
  __device__ void sum_of_partials(float4 (&o)[Chunks], int n, const Weights& weights) const {
    const float inverse = weights.inverse();
#pragma unroll(Chunks > 2 ? 4 : 8)
    for (int split = first_ + n; split < end_; split += kSums) {
      const float weight = weight_of(lse_of(split), weights.offset) * inverse;
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk)
        if (column(chunk) < args_.d_v) add(o[chunk], weight, part(split, column(chunk)));
    }
  }

  // O of a row with at most as many partial results as a warp has lanes. The first ones are on their way
  // while the weights are computed.
  __device__ void store_few() const {
    float4 parts[kAtOnce];
    read_partials(parts, first_, 0);
    const Weights all = weights();
    const int own = min(first_ + lane_id(), end_ - 1);
    const float own_weight = weight_of(lse_of(own), all.offset) * all.inverse();
    for (int chunk = 0; chunk * kColumns < args_.d_v; ++chunk) {
      float4 sums[kSums] = {};
      for (int split = first_; split < end_; split += kAtOnce) {
        if (split > first_ || chunk > 0) read_partials(parts, split, chunk);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float weight = __shfl_sync(~0u, own_weight, split - first_ + i);
          if (split + i < end_) add(sums[i % kSums], weight, parts[i]);
        }
      }
#pragma unroll
      for (int n = 1; n < kSums; ++n) add(sums[0], 1.f, sums[n]);
      if (column(chunk) < args_.d_v) store(column(chunk), sums[0]);
    }
    if (args_.lse && lane_id() == 0) store_lse(all);
  }

  static __device__ void add(float4& o, float weight, const float4& part) {
    o.x += weight * part.x;
    o.y += weight * part.y;
    o.z += weight * part.z;
    o.w += weight * part.w;
  }

  // The first of a lane's four columns of a chunk.
  static __device__ int column(int chunk) { return chunk * kColumns + 4 * lane_id(); }

  __device__ void store(int column, const float4& o) const {
    char* const row =
        static_cast<char*>(args_.o) +
        (Tensors::o_batch(batch_) * args_.o_stride.batch + head_ * args_.o_stride.head +
         Tensors::o_row(args_, batch_, position_) * args_.o_stride.seq) *
            kElementBytes;
    ptx::st_global_8(row + column * kElementBytes, Config::DType::pack(o.x, o.y),
                     Config::DType::pack(o.z, o.w));
  }

  __device__ void store_lse(const Weights& w) const {
    args_.lse[Tensors::o_batch(batch_) * args_.lse_batch_stride + head_ * args_.lse_head_stride +
              Tensors::o_row(args_, batch_, position_)] =
        w.sum == 0.f ? -attn::kInfinity : w.max + ptx::log(w.sum);
  }

 private:
  static constexpr int kAtOnce = 8;  // partial results in registers

  __device__ i64 partial_row(int split) const {
    return rows_.at(Config::Splits::partial(tile_, split, args_), row_);
  }
  __device__ float lse_of(int split) const { return args_.lse_partial[partial_row(split)]; }
  static __device__ float weight_of(float lse, float offset) {
    return ptx::exp2((lse - offset) * kLog2e);
  }
  __device__ float4 part(int split, int column) const {
    return *reinterpret_cast<const float4*>(args_.o_partial + partial_row(split) * args_.d_v +
                                            column);
  }
  __device__ void read_partials(float4 (&parts)[kAtOnce], int split, int chunk) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = split + i < end_ && column(chunk) < args_.d_v;
      parts[i] = there ? part(split + i, column(chunk)) : float4{};
    }
  }

  const ForwardKernelArgs& args_;
  const PartialRows<typename Config::Rows, Config::kTileRows> rows_;
  const int position_, head_;
  const i64 batch_;
  const int row_, tile_, first_, end_;
};

}  // namespace fa::sm90
