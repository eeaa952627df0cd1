// SPDX-License-Identifier: Apache-2.0
// K and V of 8 bits have a descale factor for each head of a sequence, or one for all; so may Q for the heads
// that share one of K. Those of Q and K are part of the softmax scale, and that of V is a factor of the
// output.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm90::descale {

struct PerHead {
  static constexpr bool kPerHead = true;

  class Factors {
   public:
    __device__ void read(const ForwardKernelArgs& args, int batch, int kv_head) {
      softmax_scale_ =
          args.softmax_scale * at(args.k_descale, args.k_descale_stride, batch, kv_head);
      if (args.q_descale)
        softmax_scale_ *= at(args.q_descale, args.q_descale_stride, batch, kv_head);
      if (softmax_scale_ == 0.f) softmax_scale_ = 0x1p-64f;  // hidden scores stay -inf
      of_values_ = at(args.v_descale, args.v_descale_stride, batch, kv_head);
    }

    // The caller's arguments with the factors of Q and K in the softmax scale.
    __device__ CallArgs scaled(const CallArgs& call) const {
      CallArgs changed = call;
      changed.softmax_scale = softmax_scale_;
      return changed;
    }
    __device__ float of_values() const { return of_values_; }

   private:
    static __device__ float at(const float* factors, const DescaleStrides& stride, int batch,
                               int kv_head) {
      return factors[batch * stride.batch + kv_head * stride.head];
    }

    float softmax_scale_, of_values_;
  };
};

}  // namespace fa::sm90::descale
