// SPDX-License-Identifier: Apache-2.0
// One CTA per tile, or per chunk of its keys; the hardware schedules them.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::tile_order {

struct OneEach {
  template <class Config>
  class Walk {
    static_assert(
        requires(const ForwardKernelArgs& args) { Config::Splits::count(args); },
        "Splits: count(args), where OneEach gives a CTA to every split");

   public:
    __device__ explicit Walk(const ForwardKernelArgs& args) : args_(args) {}

    __device__ bool next(Tile& tile) {
      if (done_) return false;
      const int splits = Config::Splits::count(args_);
      tile = tile_at<Config>(blockIdx.x / splits, args_);
      tile.split = blockIdx.x % splits;
      return done_ = true;
    }
    __device__ void request() {}
    __device__ void finish() {}

   private:
    const ForwardKernelArgs& args_;
    bool done_ = false;
  };
};

}  // namespace fa::sm90::tile_order
