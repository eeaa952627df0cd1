// SPDX-License-Identifier: Apache-2.0
// K and V of 8 bits have a descale factor for every 128 keys of a head of a sequence. They are multiplied by
// it when they are converted, and rounded to 16 bits. The factor of Q is part of the softmax scale.
#pragma once
#include <fa/ptx/math.cuh>
#include <fa/sm90/descale_factor.cuh>

namespace fa::sm90::descale {

struct PerBlock {
  static constexpr bool kPerTile = true;
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
