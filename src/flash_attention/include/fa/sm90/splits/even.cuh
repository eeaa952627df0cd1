// SPDX-License-Identifier: Apache-2.0
// The key blocks of all tiles form one list, which is split evenly: CTA n has the split_blocks blocks
// from n * split_blocks on, of one tile or of several. The partial results of each tile are combined
// afterwards.
#pragma once
#include <fa/sm90/key_parts.cuh>

namespace fa::sm90::splits {

struct Even : KeyParts<Even> {
  static __device__ int split_start(int tile, int split, const ForwardKernelArgs& args) {
    return split * args.split_blocks - tile * args.key_blocks;
  }
  // A partial result starts with a new tile, a new split or both, so tile + split is unique.
  static __device__ int part(int tile, int split, const ForwardKernelArgs&) { return tile + split; }
  static __device__ int first_split(int tile, const ForwardKernelArgs& args) {
    return tile * args.key_blocks / args.split_blocks;
  }
  static __device__ int end_split(int tile, const ForwardKernelArgs& args) {
    return ((tile + 1) * args.key_blocks - 1) / args.split_blocks + 1;
  }
};

}  // namespace fa::sm90::splits
