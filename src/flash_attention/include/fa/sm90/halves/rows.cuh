// SPDX-License-Identifier: Apache-2.0
// The rows of a CTA, which two warpgroups share. If CTAs of one column of the grid share a tile, they have
// different rows of it, and visit its keys at the same time.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90::halves {

// The first row of this CTA.
template <class Config>
__device__ int first_row(const Tile& tile) {
  return tile.q_block * Shape<Config>::kBR + blockIdx.y * Shape<Config>::kRows;
}

// The keys that the rows of a tile see.
template <class Config>
__device__ auto key_range(const Tile& tile, const typename Config::Mask& mask,
                          const attn::Sequence& sequence) {
  using Rows = typename Config::Rows;
  return attn::KeyRange<typename Config::Mask, Config::kBC>(
      mask, Rows::position(tile.q_block * Shape<Config>::kBR), Shape<Config>::kBR / Rows::kGroup,
      sequence);
}

}  // namespace fa::sm90::halves
