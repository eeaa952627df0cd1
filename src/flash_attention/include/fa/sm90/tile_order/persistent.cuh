// SPDX-License-Identifier: Apache-2.0
// Each of n resident CTAs takes every n-th tile, so that the loads of a tile overlap with the end of the
// previous tile. Neighbouring CTAs work on the same head, whose keys and values are in L2.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::tile_order {

struct Persistent {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const ForwardKernelArgs& args)
        : heads_(args.heads),
          q_blocks_(num_q_blocks<Config>(args)),
          num_tiles_(q_blocks_ * args.heads * args.batch),
          next_(blockIdx.x) {}

    __device__ bool next(Tile& tile) {
      if (next_ >= num_tiles_) return false;
      tile = tile_of(next_ % q_blocks_, next_ / q_blocks_, heads_);
      next_ += gridDim.x;
      return true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const int heads_, q_blocks_, num_tiles_;
    int next_;
  };
};

}  // namespace fa::sm90::tile_order
