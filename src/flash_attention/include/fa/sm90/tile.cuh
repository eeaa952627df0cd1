// SPDX-License-Identifier: Apache-2.0
// A tile is a block of query rows of one head (or of a group of heads) of one sequence. A split is the
// range of its keys that a CTA visits, with split-KV. A tile order yields the tiles of a CTA one after
// the other.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/sm90/packed_tiles.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

struct Tile {
  int q_block, head, batch, split;
};

template <class Config>
__device__ int num_q_blocks(const ForwardKernelArgs& args) {
  return (args.seq_len_q * Config::Rows::kGroup + Shape<Config>::kBR - 1) / Shape<Config>::kBR;
}

__device__ inline Tile tile_of(int q_block, int head_of_all, int heads) {
  return {q_block, head_of_all % heads, head_of_all / heads, 0};
}

// Tiles in the order of their query blocks, then of their heads, then of their sequences. Of packed queries,
// the numbers of the tiles do not follow each other.

template <class Config>
__device__ auto packed_tiles(const ForwardKernelArgs& args) {
  return PackedTiles<typename Config::Rows, Shape<Config>::kBR>{args};
}

template <class Config>
__device__ int num_tiles(const ForwardKernelArgs& args) {
  if constexpr (Config::Lengths::kPackedQueries) return packed_tiles<Config>(args).count();
  return num_q_blocks<Config>(args) * (args.heads / Config::Rows::kGroup) * args.batch;
}

template <class Config>
__device__ Tile tile_at(int index, const ForwardKernelArgs& args) {
  if constexpr (Config::Lengths::kPackedQueries) {
    const int batch = packed_tiles<Config>(args).sequence(index);
    return {index - packed_tiles<Config>(args).first(batch), 0, batch, 0};
  }
  const int q_blocks = num_q_blocks<Config>(args);
  return tile_of(index % q_blocks, index / q_blocks, args.heads / Config::Rows::kGroup);
}

template <class Config>
__device__ int tile_index(const Tile& tile, const ForwardKernelArgs& args) {
  if constexpr (Config::Lengths::kPackedQueries)
    return packed_tiles<Config>(args).first(tile.batch) + tile.q_block;
  const int head_of_all = tile.batch * (args.heads / Config::Rows::kGroup) + tile.head;
  return head_of_all * num_q_blocks<Config>(args) + tile.q_block;
}

// The head of K and V that a tile's heads share.
template <class Config>
__device__ int kv_head(const Tile& tile, const ForwardKernelArgs& args) {
  return Config::Rows::kGroup > 1 ? tile.head : tile.head / args.heads_per_kv;
}

}  // namespace fa::sm90
