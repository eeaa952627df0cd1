// SPDX-License-Identifier: Apache-2.0
// The distance between two rows of a tensor is a run-time argument.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::row_stride {

struct FromArgs {
  static __device__ i64 elements(i64 from_args) { return from_args; }
};

}  // namespace fa::sm80::row_stride
