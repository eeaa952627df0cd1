// SPDX-License-Identifier: Apache-2.0
// Keys that are split: a CTA computes a part of O from split_blocks key blocks, and the parts of a
// tile are combined afterwards. `Splits` says where a split begins in the key blocks of a tile.
#pragma once
#include <fa/kernel_args.cuh>
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
  // A range that lies outside of a split is empty at its border: no rows pass over more blocks than
  // the split has.
  static __device__ int within(int block, int tile, int split, const ForwardKernelArgs& args) {
    const int first = Splits::split_start(tile, split, args);
    return min(max(block, first), first + args.split_blocks);
  }
};

}  // namespace fa::sm90
