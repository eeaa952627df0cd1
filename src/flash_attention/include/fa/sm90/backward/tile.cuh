// SPDX-License-Identifier: Apache-2.0
// A tile is a block of keys of one head of k and v of one sequence. A tile order yields the tiles of a
// CTA one after the other.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/core.cuh>

namespace fa::sm90::backward {

struct Tile {
  int key_first, kv_head, batch;
};

// Of the part of the work that this launch does.
template <class Config>
__device__ int num_key_blocks(const BackwardKernelArgs& args) {
  return (args.part_keys + Config::kBC - 1) / Config::kBC;
}

template <class Config>
__device__ int num_tiles(const BackwardKernelArgs& args) {
  return num_key_blocks<Config>(args) * args.part_heads;
}

// The blocks of `group` heads side by side, then those of the next group.
struct BlockOfHead {
  int block, head;
};
__device__ inline BlockOfHead block_in_group(int index, int blocks, int all_heads, int group) {
  const int first_head = index / (blocks * group) * group;
  const int heads = min(group, all_heads - first_head);  // the last group may be smaller
  const int in_group = index - first_head * blocks;
  return {in_group / heads, first_head + in_group % heads};
}

template <class Config>
__device__ Tile tile_in_group(int index, const BackwardKernelArgs& args, int group) {
  const int kv_heads = args.heads / args.heads_per_kv;
  const auto [block, head_of_part] =
      block_in_group(index, num_key_blocks<Config>(args), args.part_heads, group);
  const int head = args.part_head + head_of_part;
  return {args.part_key + block * Config::kBC, head % kv_heads, head / kv_heads};
}

}  // namespace fa::sm90::backward
