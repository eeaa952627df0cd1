// SPDX-License-Identifier: Apache-2.0
// One CTA per tile: the tiles of a head one after the other. The hardware schedules them.
#pragma once
#include <fa/sm90/backward/tile.cuh>

namespace fa::sm90::backward::tile_order {

struct OneEach {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const BackwardKernelArgs& args) : args_(args) {}

    __device__ bool next(Tile& tile) {
      if (done_) return false;
      tile = tile_in_group<Config>(blockIdx.x, args_, 1);
      return done_ = true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const BackwardKernelArgs& args_;
    bool done_ = false;
  };
};

}  // namespace fa::sm90::backward::tile_order
