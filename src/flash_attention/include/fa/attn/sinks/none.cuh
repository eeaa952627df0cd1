// SPDX-License-Identifier: Apache-2.0
// A row ends with the keys it saw.
#pragma once
#include <fa/kernel_args.cuh>

namespace fa::attn {
struct RowEnd;  // lse.cuh
}

namespace fa::attn::sinks {

struct None {
  static __device__ void add(RowEnd&, const ForwardKernelArgs&, int /*head*/) {}
};

}  // namespace fa::attn::sinks
