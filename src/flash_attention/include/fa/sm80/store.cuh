// SPDX-License-Identifier: Apache-2.0
// The slot Store: how O leaves the registers of a CTA.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm80::store {

// Lanes store the pairs they hold: a quad writes 16 bytes of a row, eight rows at a time.
struct Direct {
  template <class Block>
  static __device__ void run(const Block& b) {
    using Config = typename Block::Config;
    const int row = lane_id() / 4;
    char* const lane = b.output(row) + lane_id() % 4 * sizeof(u32);
#pragma unroll
    for (int i = 0; i < Block::kWarpRows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Config::kDHead / 8; ++j)
          if (b.has_output(row + 16 * i + 8 * h, j))
            Config::Cache::store(lane + (16 * i + 8 * h) * b.output_row_bytes() + j * kChunkBytes,
                                 b.output_pair(i, j, h));
  }
};

// O is written to shared memory in the tile's layout and stored in 16-byte chunks of whole rows. It
// overwrites Q: a warp writes and reads only the rows of Q that no other warp reads.
struct Staged {
  template <class Block>
  static __device__ void run(const Block& b) {
    using Config = typename Block::Config;
    using Tile = typename Block::QTile;
    const typename Block::template Cursor<Tile> lane(b.q_tile(), b.warp_row() + lane_id() / 4, 0);
#pragma unroll
    for (int i = 0; i < Block::kWarpRows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Config::kDHead / 8; ++j)
          ptx::st_shared_4(lane.at(16 * i + 8 * h, j) + lane_id() % 4 * sizeof(u32),
                           b.output_pair(i, j, h));
    __syncwarp();  // this warp's rows of O are in shared memory

    constexpr int kRowsPerPass = kWarpSize / Tile::kRunChunks;
#pragma unroll
    for (int chunk = lane_id() % Tile::kRunChunks; chunk < Tile::kRowChunks;
         chunk += Tile::kRunChunks)
#pragma unroll
      for (int row = lane_id() / Tile::kRunChunks; row < Block::kWarpRows; row += kRowsPerPass)
        if (b.has_output(row, chunk))
          Config::Cache::store(
              b.output(row) + chunk * kChunkBytes,
              ptx::ld_shared_16(b.q_tile() + Tile::offset(b.warp_row() + row, chunk)));
  }
};

}  // namespace fa::sm80::store
