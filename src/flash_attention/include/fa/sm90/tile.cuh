// SPDX-License-Identifier: Apache-2.0
// A tile is a block of query rows of one head (or of a group of heads) of one batch entry, and all
// keys or a chunk of them. A walk names the tiles of a CTA one after the other.
#pragma once
#include <fa/kernel_args.cuh>
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

}  // namespace fa::sm90
