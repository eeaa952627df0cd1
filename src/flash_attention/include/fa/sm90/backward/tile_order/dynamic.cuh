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
    __device__ explicit Walk(const BackwardKernelArgs& args) : args_(args) {}

    // Tiles start in the order of the counter, whichever CTA starts first.
    __device__ bool next(Tile& tile) {
      const int index = atomicAdd(args_.tile_counter, 1);
      if (index >= num_tiles<Config>(args_)) return false;
      tile = tile_in_group<Config>(index, args_, Config::kGroupHeads);
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
  };
};

}  // namespace fa::sm90::backward::tile_order
