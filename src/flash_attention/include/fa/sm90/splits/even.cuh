// SPDX-License-Identifier: Apache-2.0
// The key blocks of all tiles lie in one line, which is cut evenly: CTA n has the split_blocks blocks
// from n * split_blocks on, of one tile or of several. The part of each tile in each cut is combined
// with the others of the tile afterwards.
#pragma once
#include <fa/kernel_args.cuh>
#include <fa/ptx/grid_dependency.cuh>

namespace fa::sm90::splits {

struct Even {
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

  // Along the line a new part begins with a new tile, a new cut or both: no sum comes twice.
  static __device__ int part(int tile, int split, const ForwardKernelArgs&) { return tile + split; }
  static __device__ int first_split(int tile, const ForwardKernelArgs& args) {
    return tile * args.key_blocks / args.split_blocks;
  }
  static __device__ int end_split(int tile, const ForwardKernelArgs& args) {
    return ((tile + 1) * args.key_blocks - 1) / args.split_blocks + 1;
  }

 private:
  // A range that lies outside of a cut is empty at its border: no rows pass over more blocks than the
  // cut has.
  static __device__ int within(int block, int tile, int split, const ForwardKernelArgs& args) {
    const int first = split * args.split_blocks - tile * args.key_blocks;
    return min(max(block, first), first + args.split_blocks);
  }
};

}  // namespace fa::sm90::splits
