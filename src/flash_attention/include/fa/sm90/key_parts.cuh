// SPDX-License-Identifier: Apache-2.0
// Split-KV: a CTA computes a partial O from split_blocks key blocks, and the partial results of a tile
// are combined afterwards. `Splits` says where a split begins in the key blocks of a tile.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/grid_dependency.cuh>

namespace fa::sm90 {

template <class Splits>
struct KeyParts {
  static constexpr bool kParts = true;

  static __device__ void begin() { ptx::launch_dependents(); }
  template <class Range>
  static __device__ int first_block(const Range& range, int tile, int split,
                                    const ForwardKernelArgs& args) {
    return within(range.first_block(), tile, split, args);
  }
  template <class Range>
  static __device__ int end_block(const Range& range, int tile, int split,
                                  const ForwardKernelArgs& args) {
    return within(range.end_block(), tile, split, args);
  }

 private:
  // A range outside of a split becomes empty at its border, so that rows never skip more blocks than
  // the split has.
  static __device__ int within(int block, int tile, int split, const ForwardKernelArgs& args) {
    const int first = Splits::split_start(tile, split, args);
    return min(max(block, first), first + args.split_blocks);
  }
};

}  // namespace fa::sm90
