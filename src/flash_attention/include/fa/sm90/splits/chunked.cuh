// SPDX-License-Identifier: Apache-2.0
// The keys are split into chunks of split_blocks blocks, whose partial results are combined afterwards.
// Where a chunk begins does not depend on what else is in the batch.
#pragma once
#include <fa/sm90/key_parts.cuh>

namespace fa::sm90::splits {

struct Chunked : KeyParts<Chunked> {
  static __device__ int split_start(int /*tile*/, int split, const ForwardKernelArgs& args) {
    return split * args.split_blocks;
  }
  static __device__ int count(const ForwardKernelArgs& args) {
    return (args.key_blocks + args.split_blocks - 1) / args.split_blocks;
  }
  // The index of the partial result of one split of a tile.
  static __device__ int part(int tile, int split, const ForwardKernelArgs& args) {
    return tile * count(args) + split;
  }
  static __device__ int first_split(int /*tile*/, const ForwardKernelArgs&) { return 0; }
  static __device__ int end_split(int /*tile*/, const ForwardKernelArgs& args) {
    return count(args);
  }
};

}  // namespace fa::sm90::splits
