// SPDX-License-Identifier: Apache-2.0
// The lane's first address is computed once; an access advances it by constants. Steps are
// multiples of 8 rows, so the row's swizzle bits stay; chunk steps set only bits that the lane's
// own chunk has clear, so XOR (or +, unswizzled) by the step lands on the swizzled chunk without a
// carry.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80::address {

struct Folded {
  template <class Tile>
  class Cursor {
   public:
    __device__ Cursor(u32 tile, int row, int chunk) : first_(tile + Tile::offset(row, chunk)) {}

    __device__ u32 at(int rows, int chunks) const {
      const u32 in_row = Tile::Layout::advance(first_, chunks % Tile::kPanelChunks * kChunkBytes);
      return in_row + rows * Tile::kRowBytes + chunks / Tile::kPanelChunks * Tile::kPanelBytes;
    }

   private:
    u32 first_;
  };
};

}  // namespace fa::sm80::address
