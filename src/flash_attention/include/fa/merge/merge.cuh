// SPDX-License-Identifier: Apache-2.0
// Merges results over the same queries and different keys: their weights are the exponentials of their
// log-sum-exps. Parts are added in order, so that the bits do not depend on the GPU. A part that sees no key
// has no weight, whatever its O is; a row of no key is 0, and its log-sum-exp -inf.
//
// kRowThreads threads merge a row, four columns each at a time.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/core.cuh>
#include <fa/merge_args.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::merge::values {

// Four columns in float32.
struct Floats {
  template <class DType>
  static __device__ float4 load(const void* tensor, i64 element) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(tensor) + element);
  }
  template <class DType>
  static __device__ void store(void* tensor, i64 element, float4 x) {
    *reinterpret_cast<float4*>(static_cast<float*>(tensor) + element) = x;
  }
};

// Four columns in 16 bits, as two pairs.
struct Pairs {
  template <class DType>
  static __device__ float4 load(const void* tensor, i64 element) {
    const uint2 pairs =
        *reinterpret_cast<const uint2*>(static_cast<const char*>(tensor) + element * kElementBytes);
    return {DType::low(pairs.x), DType::high(pairs.x), DType::low(pairs.y), DType::high(pairs.y)};
  }
  template <class DType>
  static __device__ void store(void* tensor, i64 element, float4 x) {
    ptx::st_global_8(static_cast<char*>(tensor) + element * kElementBytes, DType::pack(x.x, x.y),
                     DType::pack(x.z, x.w));
  }
};

}  // namespace fa::merge::values

namespace fa::merge {

template <class Config>
class Row {
  using DType = typename Config::DType;

 public:
  __device__ Row(const MergeKernelArgs& args, int index)
      : args_(args),
        head_(index % args.heads),
        position_(index / args.heads % args.seq_len),
        batch_(index / args.heads / args.seq_len) {}

  __device__ void run(int lane) const {
    float max = -attn::kInfinity;
    for (int part = 0; part < args_.parts; ++part) max = fmaxf(max, lse(part));
    const float offset = max == -attn::kInfinity ? 0.f : max;
    float sum = 0.f;
    for (int part = 0; part < args_.parts; ++part) sum += weight(part, offset);
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    for (int column = 4 * lane; column < args_.columns; column += 4 * Config::kRowThreads)
      Config::Merged::template store<DType>(args_.merged_o, at(args_.merged_o_stride) + column,
                                            columns(column, offset, inverse));
    if (lane == 0)
      args_.merged_lse[at(args_.merged_lse_stride)] =
          sum == 0.f ? -attn::kInfinity : offset + ptx::log(sum);
  }

 private:
  __device__ i64 at(const Strides& stride) const {
    return batch_ * stride.batch + position_ * stride.seq + head_ * stride.head;
  }
  __device__ float lse(int part) const {
    return part == 0
               ? args_.lse[at(args_.lse_stride)]
               : args_.lse_rest[(part - 1) * args_.lse_part_stride + at(args_.lse_rest_stride)];
  }
  __device__ float weight(int part, float offset) const {
    return ptx::exp2((lse(part) - offset) * kLog2e);
  }
  __device__ float4 columns(int column, float offset, float inverse) const {
    float4 o = {};
    add(o, weight(0, offset) * inverse,
        [&] { return Config::First::template load<DType>(args_.o, at(args_.o_stride) + column); });
#pragma unroll 4
    for (int part = 1; part < args_.parts; ++part)
      add(o, weight(part, offset) * inverse, [&] {
        return Config::Rest::template load<DType>(
            args_.o_rest, (part - 1) * args_.o_part_stride + at(args_.o_rest_stride) + column);
      });
    return o;
  }
  template <class Load>
  static __device__ void add(float4& o, float weight, Load load) {
    if (weight == 0.f) return;
    const float4 part = load();
    o.x += weight * part.x;
    o.y += weight * part.y;
    o.z += weight * part.z;
    o.w += weight * part.w;
  }

  const MergeKernelArgs& args_;
  const int head_, position_;
  const i64 batch_;
};

template <class Config>
__device__ void merge(const MergeKernelArgs& args) {
  constexpr int kRows = Config::kThreads / Config::kRowThreads;
  const int index = blockIdx.x * kRows + threadIdx.x / Config::kRowThreads;
  if (index < args.rows) Row<Config>(args, index).run(threadIdx.x % Config::kRowThreads);
}

}  // namespace fa::merge
