// SPDX-License-Identifier: Apache-2.0
// Tiles in shared memory: panels of 64 columns (32 where 64 do not divide d_head), one swizzled row
// of 128 (64) bytes after the other, so that TMA writes them and wgmma reads them without conflicts.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/wgmma.cuh>

namespace fa::sm90 {

inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWarpgroupRows = 64;  // of one wgmma
inline constexpr int kWarpRows = 16;

template <int DHead>
struct Panels {
  static constexpr int kColumns = DHead % 64 == 0 ? 64 : 32;
  static constexpr int kCount = DHead / kColumns;
  static constexpr int kRowBytes = kColumns * kElementBytes;  // the swizzle span, too
  static constexpr int kSteps = kColumns / 16;

  // Byte offset of a 16-byte chunk: the chunk index is XORed with the row's place in the pattern,
  // which repeats every 1024 (512) bytes.
  static __device__ u32 place(int row, int chunk) {
    const u32 offset = row * kRowBytes + chunk * kChunkBytes;
    return offset ^ (offset >> 7 & (kRowBytes / kChunkBytes - 1)) << 4;
  }
};

template <int DHead, int Rows>
struct SharedTile : Panels<DHead> {
  using Base = Panels<DHead>;
  static constexpr int kPanelBytes = Rows * Base::kRowBytes;
  static constexpr int kBytes = Base::kCount * kPanelBytes;

  // Rows along d: an operand that is contiguous along the contraction, Q or K.
  static __device__ u64 row_operand(u32 tile) {
    return ptx::wgmma_descriptor(tile, 16, 8 * Base::kRowBytes, Base::kRowBytes);
  }
  // Offset of the 16 columns of step d, in the descriptor's unit.
  static __device__ constexpr u64 row_step(int d) {
    return (d / Base::kSteps * kPanelBytes + d % Base::kSteps * 32) >> 4;
  }

  // V: contiguous along d, which is the width of the product; panels are `leading` apart.
  static __device__ u64 column_operand(u32 tile) {
    return ptx::wgmma_descriptor(tile, kPanelBytes, 8 * Base::kRowBytes, Base::kRowBytes);
  }
  // Offset of the 16 rows of step n, in the descriptor's unit.
  static __device__ constexpr u64 column_step(int n) { return n * 16 * Base::kRowBytes >> 4; }

  static __device__ u32 chunk(u32 tile, int row, int chunk) {
    constexpr int kChunks = Base::kColumns / kChunkElements;
    return tile + chunk / kChunks * kPanelBytes + Base::place(row, chunk % kChunks);
  }
};

template <class Config>
struct Shape {
  static constexpr int kGroup = Config::Rows::kGroup;
  static constexpr int kRows = kWarpgroupRows / kGroup * kGroup;  // of a warpgroup, that are used
  static constexpr int kBR = Config::kConsumers * kRows;
  static constexpr int kQLoadBytes = kRows * Config::kDHead * kElementBytes;
  using QTile = SharedTile<Config::kDHead, kWarpgroupRows>;  // of one warpgroup; O's, too
  using KVTile = SharedTile<Config::kDHead, Config::kBC>;
};

}  // namespace fa::sm90
