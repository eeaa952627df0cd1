// SPDX-License-Identifier: Apache-2.0
// The walk of a CTA that has one tile, with the blocks of `Heads` heads side by side.
#pragma once
#include <fa/sm90/backward/tile.cuh>

namespace fa::sm90::backward {

template <class Config, int Heads>
class OneTile {
 public:
  __device__ explicit OneTile(const BackwardKernelArgs& args) : args_(args) {}

  __device__ bool next(Tile& tile) {
    if (done_) return false;
    tile = tile_in_group<Config>(blockIdx.x, args_, Heads);
    return done_ = true;
  }
  __device__ void finish() {}

 private:
  const BackwardKernelArgs& args_;
  bool done_ = false;
};

}  // namespace fa::sm90::backward
