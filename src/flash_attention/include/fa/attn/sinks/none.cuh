// SPDX-License-Identifier: Apache-2.0
// There are no sinks: the softmax denominator is the sum over the keys.
#pragma once
#include <fa/call_args.cuh>

namespace fa::attn {
struct RowEnd;  // lse.cuh
}

namespace fa::attn::sinks {

struct None {
  static __device__ void add(RowEnd&, const CallArgs&, int /*head*/) {}
};

}  // namespace fa::attn::sinks
