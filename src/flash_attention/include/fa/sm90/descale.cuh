// SPDX-License-Identifier: Apache-2.0
// The slot Descale of kernels whose K and V have 8 bits.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/math.cuh>
#include <fa/sm90/products.cuh>

namespace fa::sm90::descale {

// Descale factors in global memory, and the softmax scale with those of Q and K.
__device__ inline float factor(const float* factors, const DescaleStrides& stride, int batch,
                               int kv_head, int block = 0) {
  return factors[batch * stride.batch + kv_head * stride.head + block * stride.block];
}

// The softmax scale of a head, times its factor of Q, if Q has 8 bits, and times `more`.
__device__ inline float softmax_scale(const ForwardKernelArgs& args, int batch, int kv_head,
                                      float more) {
  float scale = args.softmax_scale * more;
  if (args.q_descale) scale *= factor(args.q_descale, args.q_descale_stride, batch, kv_head);
  return scale == 0.f ? 0x1p-64f : scale;  // hidden scores stay -inf
}

// The caller's arguments with another softmax scale.
__device__ inline CallArgs rescaled(const CallArgs& call, float scale) {
  CallArgs changed = call;
  changed.softmax_scale = scale;
  return changed;
}

// K and V of 8 bits have a descale factor for each head of a sequence, or one for all. Those of Q and K are
// part of the softmax scale, and that of V is a factor of the output.
struct PerHead {
  static constexpr bool kPerTile = true;
  static constexpr bool kKeepsElements = true;

  struct Factors {
    float scale, value;

    __device__ void read(const ForwardKernelArgs& args, int batch, int kv_head) {
      const float key = factor(args.k_descale, args.k_descale_stride, batch, kv_head);
      scale = softmax_scale(args, batch, kv_head, key);
      value = factor(args.v_descale, args.v_descale_stride, batch, kv_head);
    }
    __device__ CallArgs scaled(const CallArgs& call) const { return rescaled(call, scale); }
    __device__ float of_values() const { return value; }
  };

  // The rows of a block of K or V are converted as they are.
  struct Rows {
    Rows() = default;
    __device__ Rows(const float*, const DescaleStrides&, int /*batch*/, int /*kv_head*/,
                    int /*first_key*/, int /*last_key*/) {}

    template <class DType>
    __device__ u32 convert(u32 halves, int /*row*/) const {
      return DType::from_halves(halves);
    }
  };
};

// K and V of 8 bits have a descale factor for every 128 keys of a head of a sequence. They are multiplied by
// it when they are converted, and rounded to 16 bits. The factor of Q is part of the softmax scale.
struct PerBlock {
  static constexpr bool kPerTile = true;
  static constexpr bool kKeepsElements = false;
  static constexpr int kKeys = 128;

  struct Factors {
    float scale;

    __device__ void read(const ForwardKernelArgs& args, int batch, int kv_head) {
      scale = softmax_scale(args, batch, kv_head, 1.f);
    }
    __device__ CallArgs scaled(const CallArgs& call) const { return rescaled(call, scale); }
    __device__ float of_values() const { return 1.f; }
  };

  // The keys from `first_key` to `last_key`, at most 128, have one or two factors.
  class Rows {
   public:
    __device__ Rows(const float* factors, const DescaleStrides& stride, int batch, int kv_head,
                    int first_key, int last_key)
        : first_(factor(factors, stride, batch, kv_head, first_key / kKeys)),
          second_(factor(factors, stride, batch, kv_head, last_key / kKeys)),
          rows_of_first_(kKeys - first_key % kKeys) {}

    template <class DType>
    __device__ u32 convert(u32 halves, int row) const {
      const float by = row < rows_of_first_ ? first_ : second_;
      return DType::pack(ptx::f16_to_f32(halves & 0xffff) * by, ptx::f16_to_f32(halves >> 16) * by);
    }

   private:
    const float first_, second_;
    const int rows_of_first_;
  };
};

}  // namespace fa::sm90::descale
