// SPDX-License-Identifier: Apache-2.0
// A tile in shared memory: the slots Layout and Panels say where its chunks are, the slot Address how their
// addresses are computed.
#pragma once
#include <fa/core.cuh>

namespace fa::sm80 {

// Where chunk (row, chunk) of a tile lives in shared memory. A tile that is narrower than a panel leaves
// the rest of its panel empty.
template <class Config, int Rows, int Columns = Config::kDHead>
struct Tile {
  using Layout = typename Config::Layout;
  static constexpr int kRows = Rows;
  static constexpr int kPaddedColumns = (Columns + 63) / 64 * 64;
  static constexpr int kBytes = Rows * kPaddedColumns * kElementBytes;
  static constexpr int kPanelChunks = Config::Panels::template kChunks<kPaddedColumns>;
  static constexpr int kRowBytes = kPanelChunks * kChunkBytes;
  static constexpr int kPanelBytes = Rows * kRowBytes;

  // Chunks of a row, and how many of them threads take side by side: a power of two, and with no more
  // than 128 threads still whole groups of eight rows a pass, as cursors step.
  static constexpr int kRowChunks = Columns / kChunkElements;
  static constexpr int kRunChunks = kRowChunks % 8 ? 4 : kRowChunks % 16 ? 8 : 16;

  static __device__ u32 offset(int row, int chunk) {
    return chunk / kPanelChunks * kPanelBytes + row * kRowBytes +
           Layout::place(row, chunk % kPanelChunks) * kChunkBytes;
  }
};

template <class T>
concept LayoutSlot = requires(int row, int chunk, u32 address) {
  T::place(row, chunk);
  T::advance(address, address);
};

template <class T>
concept PanelsSlot = requires { T::template kChunks<128>; };

}  // namespace fa::sm80

namespace fa::sm80::layout {

// Chunks of a row follow each other: the eight rows of an ldmatrix phase fall in the same banks.
struct RowMajor {
  static __device__ int place(int /*row*/, int chunk) { return chunk; }
  static __device__ u32 advance(u32 address, u32 bytes) { return address + bytes; }
};

// The chunk index is XORed with the row modulo 8: no two rows of an ldmatrix phase share a bank.
struct XorSwizzle {
  static __device__ int place(int row, int chunk) { return chunk ^ (row % 8); }
  static __device__ u32 advance(u32 address, u32 bytes) { return address ^ bytes; }
};

}  // namespace fa::sm80::layout

namespace fa::sm80::panels {

// A row of the tile is one run of d_head elements.
struct WholeRows {
  template <int DHead>
  static constexpr int kChunks = DHead / kChunkElements;
};

// The tile is cut into panels of 64 columns: a panel row is 128 bytes, all 32 banks once, and the
// eight chunks of a row use every value of the three swizzle bits.
struct Columns64 {
  template <int DHead>
  static constexpr int kChunks = 64 / kChunkElements;
};

}  // namespace fa::sm80::panels

namespace fa::sm80::address {

// Every access computes its address from row and chunk.
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

// The lane's first address is computed once; an access advances it by constants. Steps are
// multiples of 8 rows, so the row's swizzle bits stay; chunk steps set only bits that the lane's
// own chunk has clear, so XOR (or +, unswizzled) by the step lands on the swizzled chunk without a
// carry.
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
