// SPDX-License-Identifier: Apache-2.0
// The slot Splits with split-KV: where the host splits the keys of a tile.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// Split-KV: a CTA computes a partial O from split_blocks key blocks, and the partial results of a tile
// are combined afterwards. `Splits` says where a split begins in the key blocks of a tile.
template <class Splits>
struct KvSplits {
  static constexpr bool kSplitKv = true;
  static constexpr bool kOnDevice = false;

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

namespace fa::sm90::splits {

// The keys are split every split_blocks blocks, and the partial results are combined afterwards.
// Where a split begins does not depend on what else is in the batch.
struct Fixed : KvSplits<Fixed> {
  static __device__ int split_start(int /*tile*/, int split, const ForwardKernelArgs& args) {
    return split * args.split_blocks;
  }
  static __device__ int count(const ForwardKernelArgs& args) {
    return (args.key_blocks + args.split_blocks - 1) / args.split_blocks;
  }
  // The index of the partial result of one split of a tile.
  static __device__ int partial(int tile, int split, const ForwardKernelArgs& args) {
    return tile * count(args) + split;
  }
  static __device__ int first_split(int /*tile*/, const ForwardKernelArgs&) { return 0; }
  static __device__ int end_split(int /*tile*/, const ForwardKernelArgs& args) {
    return count(args);
  }
};

// The key blocks of all tiles form one list, which is split evenly: CTA n has the split_blocks blocks
// from n * split_blocks on, of one tile or of several. The partial results of each tile are combined
// afterwards.
struct Even : KvSplits<Even> {
  static __device__ int split_start(int tile, int split, const ForwardKernelArgs& args) {
    return split * args.split_blocks - tile * args.key_blocks;
  }
  // A partial result starts with a new tile, a new split or both, so tile + split is unique.
  static __device__ int partial(int tile, int split, const ForwardKernelArgs&) {
    return tile + split;
  }
  static __device__ int first_split(int tile, const ForwardKernelArgs& args) {
    return tile * args.key_blocks / args.split_blocks;
  }
  static __device__ int end_split(int tile, const ForwardKernelArgs& args) {
    return ((tile + 1) * args.key_blocks - 1) / args.split_blocks + 1;
  }
};

}  // namespace fa::sm90::splits
