// SPDX-License-Identifier: Apache-2.0
// The slot Store: how a gradient leaves the registers of a CTA.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm80::backward::store {

// Two neighbouring columns of a sum in 16 bits.
template <class Block, class Sum>
__device__ u32 pair(const Sum& sum, int i, int j, int h, float factor) {
  return Block::DType::pack(sum.v[i][j][2 * h] * factor, sum.v[i][j][2 * h + 1] * factor);
}

// A sum is stored from the registers that hold it, in pairs: a quad of lanes has 16 bytes of a row.
struct Direct {
  template <class Block, class Rows, class Sum>
  static __device__ void run(const Block& b, u32 /*tile*/, const Rows& rows, const Sum& sum,
                             float factor) {
#pragma unroll
    for (int i = 0; i < Sum::kRowFragments; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = b.first_row() + b.warp_row() + 16 * i + 8 * h + lane_id() / 4;
        char* const to = const_cast<char*>(rows.address(row)) + lane_id() % 4 * sizeof(u32);
#pragma unroll
        for (int j = 0; j < Sum::kColFragments; ++j)
          if (rows.has(row, b.sum_chunk(j)))
            Block::Config::Cache::store(to + b.sum_chunk(j) * kChunkBytes,
                                        pair<Block>(sum, i, j, h, factor));
      }
  }
};

// A sum is written to shared memory in the tile's layout, over the rows of an operand that no product
// reads any more, and stored in 16-byte chunks of whole rows.
struct Staged {
  template <class Block, class Rows, class Sum>
  static __device__ void run(const Block& b, u32 tile, const Rows& rows, const Sum& sum,
                             float factor) {
    using Tile = typename Block::OwnTile;
    const typename Block::template Cursor<Tile> lane(tile, b.warp_row() + lane_id() / 4,
                                                     b.sum_chunk(0));
    __syncthreads();  // every warp is done with the operand
#pragma unroll
    for (int i = 0; i < Sum::kRowFragments; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Sum::kColFragments; ++j)
          ptx::st_shared_4(lane.at(16 * i + 8 * h, Block::sum_step(j)) +
                               lane_id() % 4 * static_cast<int>(sizeof(u32)),
                           pair<Block>(sum, i, j, h, factor));
    __syncthreads();  // the sum is in shared memory

    constexpr int kRowsPerPass = Block::kThreads / Tile::kRunChunks;
#pragma unroll
    for (int c = 0; c < Tile::kRowChunks; c += Tile::kRunChunks)
#pragma unroll
      for (int r = 0; r < Tile::kRows; r += kRowsPerPass) {
        const int row = r + threadIdx.x / Tile::kRunChunks;
        const int chunk = c + threadIdx.x % Tile::kRunChunks;
        if (rows.has(b.first_row() + row, chunk))
          Block::Config::Cache::store(
              const_cast<char*>(rows.address(b.first_row() + row)) + chunk * kChunkBytes,
              ptx::ld_shared_16(tile + Tile::offset(row, chunk)));
      }
  }
};

}  // namespace fa::sm80::backward::store
