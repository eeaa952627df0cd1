// SPDX-License-Identifier: Apache-2.0
// The keys are cut into chunks of split_blocks blocks, and the part of each is combined with the
// others afterwards. Where a chunk begins does not depend on what else is in the batch.
#pragma once
#include <fa/kernel_args.cuh>
#include <fa/ptx/grid_dependency.cuh>

namespace fa::sm90::splits {

struct Chunked {
  static constexpr bool kParts = true;

  static __device__ void begin() { ptx::launch_dependents(); }
  template <class Range>
  static __device__ int first_block(const Range& range, int /*tile*/, int split,
                                    const ForwardKernelArgs& args) {
    return within(range.first_block(), split, args);
  }
  template <class Range>
  static __device__ int end_block(const Range& range, int /*tile*/, int split,
                                  const ForwardKernelArgs& args) {
    return within(range.end_block(), split, args);
  }

  static __device__ int count(const ForwardKernelArgs& args) {
    return (args.key_blocks + args.split_blocks - 1) / args.split_blocks;
  }
  // Of all parts, that of one split of a tile.
  static __device__ int part(int tile, int split, const ForwardKernelArgs& args) {
    return tile * count(args) + split;
  }
  static __device__ int first_split(int /*tile*/, const ForwardKernelArgs&) { return 0; }
  static __device__ int end_split(int /*tile*/, const ForwardKernelArgs& args) {
    return count(args);
  }

 private:
  // A range that lies outside of a chunk is empty at its border: no rows pass over more blocks than
  // the chunk has.
  static __device__ int within(int block, int split, const ForwardKernelArgs& args) {
    const int first = split * args.split_blocks;
    return min(max(block, first), first + args.split_blocks);
  }
};

}  // namespace fa::sm90::splits
