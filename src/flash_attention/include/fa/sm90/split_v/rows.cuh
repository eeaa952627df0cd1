// SPDX-License-Identifier: Apache-2.0
// The rows of a CTA, which two warpgroups share. If CTAs of one column of the grid share a tile, they have
// different rows of it, and visit its keys at the same time.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90::split_v {

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

// The tiles of a walk in which this CTA has a query. Packed sequences may have fewer queries than a tile has
// room for, and some numbers have no tile.
template <class Order>
struct WithQueries {
  static constexpr bool kByWarp = false;

  template <class Config>
  class Walk : public Order::template Walk<Config> {
    using Base = typename Order::template Walk<Config>;

   public:
    __device__ explicit Walk(const ForwardKernelArgs& args) : Base(args), args_(args) {}

    __device__ bool next(Tile& tile) {
      while (Base::next(tile))
        if (first_row<Config>(tile) <
            Config::Lengths::q_len(args_, tile.batch) * Config::Rows::kGroup)
          return true;
      return false;
    }

   private:
    const ForwardKernelArgs& args_;
  };
};

}  // namespace fa::sm90::split_v

namespace fa::sm90::split_v::tile_order {

// OneEach for packed queries.
struct PackedOneEach : WithQueries<sm90::tile_order::OneEach> {};

// StreamK for packed queries.
struct PackedStreamK : WithQueries<sm90::tile_order::StreamK> {};

}  // namespace fa::sm90::split_v::tile_order
