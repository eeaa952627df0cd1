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
    __device__ explicit Walk(const BackwardKernelArgs& args)
        : args_(args), taken_(blockIdx.x - gridDim.x) {}

    __device__ bool next(Tile& tile) {
      const int index = gridDim.x + taken_;
      if (index >= num_tiles<Config>(args_)) return false;
      tile = tile_in_group<Config>(index, args_, Config::kGroupHeads);
      return true;
    }

    // Requests the tile after this one; the result is needed in next().
    __device__ void request() { taken_ = atomicAdd(args_.tile_counter, 1); }

    // The last CTA to finish resets the counters to zero.
    __device__ void finish() {
      if (atomicAdd(args_.tile_counter + 1, 1) == gridDim.x - 1) {
        args_.tile_counter[0] = 0;
        args_.tile_counter[1] = 0;
      }
    }

   private:
    const BackwardKernelArgs& args_;
    int taken_;  // tiles that CTAs had taken before, without their first ones
  };
};

}  // namespace fa::sm90::backward::tile_order
