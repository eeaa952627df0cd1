// SPDX-License-Identifier: Apache-2.0
// One CTA per tile. Heads are processed in groups whose queries stay in L2. Within a group the first
// keys come first: under a causal mask most queries see them, so short tiles come last.
#pragma once
#include <fa/sm90/backward/tile.cuh>

namespace fa::sm90::backward::tile_order {

struct Grouped {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const BackwardKernelArgs& args) : args_(args) {}

    __device__ bool next(Tile& tile) {
      if (done_) return false;
      tile = tile_in_group<Config>(blockIdx.x, args_, Config::kGroupHeads);
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
