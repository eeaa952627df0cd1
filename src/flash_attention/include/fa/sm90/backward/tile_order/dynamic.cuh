// SPDX-License-Identifier: Apache-2.0
// Resident CTAs take the next tile of the grouped order from a counter in global memory, so that a CTA
// starts once, and the loads of a tile overlap with the end of the previous one.
#pragma once
#include <fa/sm90/backward/tile.cuh>

namespace fa::sm90::backward::tile_order {

struct Dynamic {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const BackwardKernelArgs& args) : args_(args), index_(blockIdx.x) {}

    __device__ bool next(Tile& tile) {
      if (!first_) index_ = gridDim.x + atomicAdd(args_.tile_counter, 1);
      first_ = false;
      if (index_ >= num_tiles<Config>(args_)) return false;
      tile = tile_in_group<Config>(index_, args_, Config::kGroupHeads);
      return true;
    }

    // The last CTA to finish resets the counters to zero.
    __device__ void finish() {
      if (atomicAdd(args_.tile_counter + 1, 1) == gridDim.x - 1) {
        args_.tile_counter[0] = 0;
        args_.tile_counter[1] = 0;
      }
    }

   private:
    const BackwardKernelArgs& args_;
    int index_;
    bool first_ = true;
  };
};

}  // namespace fa::sm90::backward::tile_order
