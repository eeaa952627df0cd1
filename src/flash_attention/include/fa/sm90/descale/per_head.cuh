// SPDX-License-Identifier: Apache-2.0
// K and V of 8 bits have a descale factor for each head of a sequence, or one for all. Those of Q and K are
// part of the softmax scale, and that of V is a factor of the output.
#pragma once
#include <fa/sm90/descale_factor.cuh>

namespace fa::sm90::descale {

struct PerHead {
  static constexpr bool kPerTile = true;

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
    __device__ Rows(const float*, const DescaleStrides&, int /*batch*/, int /*kv_head*/,
                    int /*first_key*/, int /*last_key*/) {}

    template <class DType>
    __device__ u32 convert(u32 halves, int /*row*/) const {
      return DType::from_halves(halves);
    }
  };
};

}  // namespace fa::sm90::descale
