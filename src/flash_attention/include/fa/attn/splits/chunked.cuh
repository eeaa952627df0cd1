// SPDX-License-Identifier: Apache-2.0
// The keys are cut into chunks of so many blocks; each is a tile of its own, and the parts are
// combined afterwards. Where a chunk begins does not depend on what else is in the batch.
#pragma once
#include <fa/kernel_args.cuh>

namespace fa::attn::splits {

struct Chunked {
  static constexpr bool kChunked = true;

  static __device__ int count(const ForwardKernelArgs& args) { return args.num_splits; }

  template <class Range>
  static __device__ int first_block(const Range& range, int split, const ForwardKernelArgs& args) {
    return max(range.first_block(), split * args.split_blocks);
  }
  template <class Range>
  static __device__ int end_block(const Range& range, int split, const ForwardKernelArgs& args) {
    return min(range.end_block(), (split + 1) * args.split_blocks);
  }
};

}  // namespace fa::attn::splits
