// SPDX-License-Identifier: Apache-2.0
// Every access computes its address from row and chunk.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::address {

struct Recomputed {
  template <class Tile>
  class Cursor {
   public:
    __device__ Cursor(u32 tile, int row, int chunk) : tile_(tile), row_(row), chunk_(chunk) {}

    __device__ u32 at(int rows, int chunks) const {
      return tile_ + Tile::offset(row_ + rows, chunk_ + chunks);
    }

   private:
    u32 tile_;
    int row_, chunk_;
  };
};

}  // namespace fa::sm80::address
