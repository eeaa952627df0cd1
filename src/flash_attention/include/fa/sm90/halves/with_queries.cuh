// SPDX-License-Identifier: Apache-2.0
// The tiles of a walk in which this CTA has a query. Packed sequences may have fewer queries than a tile has
// room for, and some numbers have no tile.
#pragma once
#include <fa/sm90/halves/rows.cuh>

namespace fa::sm90::halves {

template <class Order>
struct WithQueries {
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

}  // namespace fa::sm90::halves
