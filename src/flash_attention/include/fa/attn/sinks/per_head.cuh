// SPDX-License-Identifier: Apache-2.0
// A logit per head is added to the softmax denominator only.
#pragma once
#include <fa/attn/lse.cuh>
#include <fa/call_args.cuh>

namespace fa::attn::sinks {

struct PerHead {
  static __device__ void add(RowEnd& end, const CallArgs& args, int head) {
    end.add_sink(args.sinks[head]);
  }
};

}  // namespace fa::attn::sinks
