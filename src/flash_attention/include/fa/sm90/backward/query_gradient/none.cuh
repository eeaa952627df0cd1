// SPDX-License-Identifier: Apache-2.0
// dQ is not wanted: dS is used for dK and forgotten.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward::query_gradient {

struct None {
  static constexpr bool kStoresDs = false;

  template <class Config, int Warpgroup>
  struct KeySide {
    __device__ explicit KeySide(const BackwardKernelArgs&) {}
    __device__ void begin_tile(Mailbox) {}
    __device__ void next_head() {}
    template <class Pairs>
    __device__ void hand_over(const Pairs&, int /*block*/) {}
  };
};

}  // namespace fa::sm90::backward::query_gradient
