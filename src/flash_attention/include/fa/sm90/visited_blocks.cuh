// SPDX-License-Identifier: Apache-2.0
// The key blocks that the rows of a tile see, as far as they are in its split. They are visited from the
// last to the first.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

struct VisitedBlocks {
  int first, end;
};

template <class Config>
__device__ VisitedBlocks visited_blocks(const Tile& tile, const attn::Sequence& sequence,
                                        const ForwardKernelArgs& args) {
  const attn::KeyRange<typename Config::Mask, Config::kBC> range(
      typename Config::Mask(args), Config::Rows::position(tile.q_block * Shape<Config>::kBR),
      Shape<Config>::kBR / Config::Rows::kGroup, sequence);
  const int index = tile_index<Config>(tile, args);
  return {Config::Splits::first_block(range, index, tile.split, args),
          Config::Splits::end_block(range, index, tile.split, args)};
}

}  // namespace fa::sm90
