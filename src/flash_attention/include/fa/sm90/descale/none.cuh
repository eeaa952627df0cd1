// SPDX-License-Identifier: Apache-2.0
// K and V of 16 bits have no descale factors.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm90::descale {

struct None {
  static constexpr bool kPerTile = false;

  struct Factors {
    __device__ void read(const ForwardKernelArgs&, int /*batch*/, int /*kv_head*/) {}
    __device__ const CallArgs& scaled(const CallArgs& call) const { return call; }
    __device__ float of_values() const { return 1.f; }
  };
};

}  // namespace fa::sm90::descale
