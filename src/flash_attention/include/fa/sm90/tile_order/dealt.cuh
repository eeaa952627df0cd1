// SPDX-License-Identifier: Apache-2.0
// Every CTA has the same number of key blocks, consecutive in the list of all tiles: the end of one
// tile, whole tiles, the beginning of another.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::tile_order {

struct Dealt {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : args_(args),
          next_(blockIdx.x * args.split_blocks / args.key_blocks),
          end_(min(((blockIdx.x + 1) * args.split_blocks - 1) / args.key_blocks + 1,
                   num_tiles<Config>(args))) {}

    __device__ bool next(Tile& tile) {
      if (next_ >= end_) return false;
      tile = tile_at<Config>(next_++, args_);
      tile.split = blockIdx.x;
      return true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const ForwardKernelArgs& args_;
    int next_;
    const int end_;
  };
};

}  // namespace fa::sm90::tile_order
