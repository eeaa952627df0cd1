// SPDX-License-Identifier: Apache-2.0
// No split-KV: a tile visits all key blocks of its rows.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm90::splits {

struct Whole {
  static constexpr bool kParts = false;

  static __device__ void begin() {}
  static __device__ int count(const ForwardKernelArgs&) { return 1; }
  template <class Range>
  static __device__ int first_block(const Range& range, int /*tile*/, int /*split*/,
                                    const ForwardKernelArgs&) {
    return range.first_block();
  }
  template <class Range>
  static __device__ int end_block(const Range& range, int /*tile*/, int /*split*/,
                                  const ForwardKernelArgs&) {
    return range.end_block();
  }
};

}  // namespace fa::sm90::splits
